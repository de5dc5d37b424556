"""Tagging: entities as conlleval counts them, the tokens of words, schemes, and whole trainings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.errors import MismatchError
from data_prep.tokenizers.word_lexicon import assemble
from models.elmo.language_model import ElmoLanguageModel
from models.language_models import CausalLanguageModel
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.forms.tags import ABSENT, TagsTask, word_tokens
from pipeline.tune.metrics.entities import entities, entity_metrics
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.forms import TaggedSentence
from pipeline.tune.tasks.tagging import POS_LABELS, ConllNerConfig
from pipeline.tune.tokenizer import TextTokenizer
from tests.pipeline.tune.conftest import MODEL, WORDS, make_checkpoint
from tests.pipeline.tune.samples import byte_level, wordpiece
from tests.pipeline.tune.test_kinds_of_network import ELMO, GPT


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", [("PER", 1, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        # As conlleval reads it: an I behind O begins an entity.
        ("O I-PER I-PER", [("PER", 1, 3)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER I-PER E-PER S-LOC S-LOC O", [("PER", 0, 3), ("LOC", 3, 4), ("LOC", 4, 5)]),
        ("E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("O O", []),
    ],
)
def test_entities_are_those_of_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_entities_count_only_whole_and_with_the_right_type():
    # 3 right entities, 4 predicted, 1 in common; 10 of 12 tags are equal.
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "O"]]
    guessed = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "O"]]
    found = entity_metrics(right, guessed)
    assert found == pytest.approx({"f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3, "accuracy": 10 / 12})
    guessed[1] = ["B-ORG", "I-ORG", "O", "B-LOC", "B-LOC"]
    found = entity_metrics(right, guessed)
    assert found["precision"] == 1 / 4
    assert found["recall"] == 1 / 3
    assert found["f1"] == pytest.approx(2 / 7)
    assert entity_metrics([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


@pytest.mark.parametrize("make", [byte_level, wordpiece])
def test_every_word_has_its_first_and_its_last_token(corpora, tmp_path, make):
    tokenizer = TextTokenizer(make(corpora, tmp_path / "tokenizer.json"))
    words = ("Johanson", "visited", "New", "York's", "café", ".")
    ((ids, offsets),) = tokenizer.ids_with_offsets([" ".join(words)])
    first, last = (word_tokens(words, offsets, side) for side in ("first", "last"))
    assert first[0] == 0
    assert last[-1] == len(ids) - 1
    assert (first[1:] == last[:-1] + 1).all()
    text = " ".join(words)
    for word, begin, end in zip(words, first, last, strict=True):
        assert text[offsets[begin, 0] : offsets[end, 1]].strip() == word


def test_word_without_characters_to_read_has_no_token(corpora, tmp_path):
    tokenizer = TextTokenizer(wordpiece(corpora, tmp_path / "tokenizer.json"))
    words = ("a", "\u200b", "b")
    ((_, offsets),) = tokenizer.ids_with_offsets([" ".join(words)])
    assert word_tokens(words, offsets, "first").tolist() == [0, ABSENT, 1]


def columns(*sentences: str, separator: str = "\t") -> str:
    """`word/TAG` pairs as columns."""
    lines = ["\n".join(separator.join(pair.rsplit("/", 1)) for pair in each.split()) for each in sentences]
    return "\n\n".join(lines) + "\n"


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_entities_of_a_type_that_training_does_not_have_count_as_missed(tmp_path, tokenizer_path):
    train = write(tmp_path / "train.conll", columns("EU/B-ORG a/O"))
    dev = write(tmp_path / "dev.conll", columns("EU/B-ORG a/O Rome/B-LOC"))
    config = ConllNerConfig(train=train, evaluation=dev)
    context = TaskContext(config, config.load(), TrainingConfig(), MODEL, TextTokenizer(tokenizer_path))
    task = TagsTask(context)
    assert task.labels == ("O", "B-ORG", "I-ORG")
    assert "B-LOC" in task.notes[0]
    measured = task.measure(np.array([[1, 0, 0]]))
    assert (measured["recall"], measured["precision"]) == (0.5, 1.0)


def write_names(path: Path, count: int) -> Path:
    """Sentences whose `good` and `bad` are persons, with the `film` behind them as the rest of the name."""
    sentences = []
    for number in range(count):
        filler = [f"{WORDS[4 + (number * 7 + k) % 8]}/O" for k in range(1 + number % 4)]
        sentences.append(" ".join([*filler, f"{('good', 'bad')[number % 2]}/B-PER", "film/I-PER", "was/O"]))
    return write(path, columns(*sentences))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "elmo"])
def test_names_are_learnt_with_every_kind_of_network(
    kind, make_config, tmp_path, checkpoint, tokenizer_path, recorder
):
    if kind == "decoder":
        checkpoint = make_checkpoint(tmp_path / "gpt", tokenizer_path, network=CausalLanguageModel(GPT))
    if kind == "elmo":
        lexicon = write(
            tmp_path / "lexicon.json", assemble([word for word in WORDS if len(word) > 1]).to_str()
        )
        checkpoint = make_checkpoint(tmp_path / "elmo", lexicon, network=ElmoLanguageModel(ELMO))
    path = write_names(tmp_path / "train.conll", 40)
    config = make_config(
        tasks={"names": {"kind": "conll_ner", "train": path, "evaluation": path}},
        # Above a frozen network of random weights a linear layer learns alone, so its rate is higher.
        training={
            "epochs": 12 if kind != "elmo" else 40,
            "batch_size": 8,
            "lr": 5e-3 if kind != "elmo" else 0.1,
            "max_length": 16,
            "scored": "last_epoch",
        },
        seeds=[1],
    )
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "f1"
    assert score.metrics["f1"] > 0.9
    assert score.metrics["accuracy"] >= score.metrics["f1"]


def prepared(sentences, tokenizer_path, max_length=8) -> TagsTask:
    data = TaskData(sentences, sentences, ("O", "B-PER", "I-PER"), ())
    config = ConllNerConfig(train=Path(), evaluation=Path())
    settings = TrainingConfig(max_length=max_length)
    return TagsTask(TaskContext(config, data, settings, MODEL, TextTokenizer(tokenizer_path)))


def test_words_that_are_cut_count_as_outside_of_entities(tokenizer_path):
    sentence = TaggedSentence("1", ("good",) * 9, ("B-PER",) * 9)
    short = TaggedSentence("2", ("the", "film"), ("O", "B-PER"))
    task = prepared((sentence, short), tokenizer_path)
    assert task.train.predictions.tolist() == [6, 2]
    batch = task.batch(task.train, np.array([1, 0]))
    assert batch.targets["positions"].tolist() == [[1, 2, *[ABSENT] * 7], [1, 2, 3, 4, 5, 6, *[ABSENT] * 3]]
    outputs = np.full((2, 9), ABSENT)
    outputs[0, :6], outputs[1, :2] = 1, [0, 2]
    assert task.tags(outputs) == [["B-PER"] * 6 + ["O"] * 3, ["O", "I-PER"]]
    assert task.measure(outputs)["accuracy"] == 7 / 11


def test_loss_of_a_sentence_does_not_depend_on_its_batch(tokenizer_path):
    import torch

    from models.initialization import init_weights

    sentences = tuple(
        TaggedSentence(str(n), ("good", "film")[: n + 1], ("O", "B-PER")[: n + 1]) for n in range(2)
    )
    task = prepared(sentences, tokenizer_path)
    model = task.build().eval()
    init_weights(model, 1)
    with torch.no_grad():
        together = float(task.loss(model, task.batch(task.train, np.arange(2))))
        alone = [float(task.loss(model, task.batch(task.train, np.array([row])))) for row in range(2)]
    assert together == pytest.approx(sum(alone), rel=1e-5)


def test_encoder_decoder_is_refused_for_tags(make_config, checkpoint, tmp_path):
    path = write_names(tmp_path / "train.conll", 4)
    config = make_config(tasks={"names": {"kind": "conll_ner", "train": path, "evaluation": path}})
    bart = dataclasses.replace(checkpoint, model=dataclasses.replace(MODEL, network="encoder_decoder"))
    with pytest.raises(MismatchError, match="but the network is an encoder-decoder"):
        finetune(config, bart)


def test_universal_classes_are_seventeen():
    assert len(POS_LABELS) == len(set(POS_LABELS)) == 17
