"""Every form of task: losses, also against those that `transformers` computes from the same weights, outputs, metrics
and files; and Lead-N, ROUGE, BLEU and chrF of written texts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.language_models import smoothed_loss
from pipeline.tasks.forms import TaggedSentence, TextPair
from pipeline.tasks.generation import XsumConfig, read_xsum
from pipeline.tasks.metrics.entities import entities, entity_metrics
from pipeline.tasks.metrics.texts import rouge, sentence_lines, translation_metrics
from pipeline.tasks.tagging import ConllNerConfig
from pipeline.tune.forms.base import EXCERPT_CHARACTERS, excerpt
from pipeline.tune.forms.generation import first_sentences
from pipeline.tune.forms.tags import ABSENT
from tests.pipeline.tasks.excerpts import EXCERPTS, objects, task_of
from tests.pipeline.tune.conftest import (
    DECODER,
    ENCODER_DECODER,
    GPT,
    MODEL,
    UNREAD,
    enlarged,
    prepare,
    prepared_rows,
)
from tests.published_networks import PRESETS

BERT = dataclasses.replace(MODEL, num_segments=2, norm_eps=1e-12)
T5 = dataclasses.replace(PRESETS["t5-small"], vocab_size=32, num_layers=1, hidden_size=32, num_heads=2)


@pytest.mark.parametrize(
    ("form", "network"),
    [
        *((form, MODEL) for form in ("classification", "regression", "tags", "spans", "choices")),
        *((form, DECODER) for form in ("classification", "tags", "choices", "generation")),
        *((form, ENCODER_DECODER) for form in ("classification", "choices", "generation")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.network,
)
@torch.no_grad()
def test_loss_of_rows_is_the_sum_of_the_losses_of_each(form, network, tokenizer):
    task = prepared_rows(form, tokenizer, network)
    model = task.build().eval()
    init_weights(model, 1)
    together, first, second = (
        float(task.loss(model, task.batch(task.train, np.array(rows)))) for rows in ([0, 1], [0], [1])
    )
    assert first != pytest.approx(second)
    assert together == pytest.approx(first + second, rel=1e-5)


@pytest.mark.parametrize(
    ("network", "form", "auto_class"),
    [
        (BERT, "spans", "AutoModelForQuestionAnswering"),
        (ENCODER_DECODER, "generation", "AutoModelForSeq2SeqLM"),
        (T5, "generation", "AutoModelForSeq2SeqLM"),
    ],
    ids=["bert", "bart", "t5"],
)
# One row at a time, because in transformers the ends of answers compete with padding.
@pytest.mark.parametrize("row", [0, 1])
@torch.no_grad()
def test_losses_are_those_that_transformers_computes(network, form, auto_class, row, tokenizer, tmp_path):
    task = prepared_rows(form, tokenizer, network)
    model = enlarged(task.build(), 3)
    state = {name.removeprefix("network."): tensor for name, tensor in model.state_dict().items()}
    save_hf_directory(tmp_path / "hf", state, network)
    theirs = getattr(transformers, auto_class).from_pretrained(tmp_path / "hf").eval()
    batch = task.batch(task.train, np.array([row]))
    inputs = {"input_ids": batch.inputs["input_ids"], "attention_mask": batch.inputs["attention_mask"].long()}
    if form == "generation":
        labels = torch.full(batch.inputs["decoder_input_ids"].shape, -100).flatten()
        labels[batch.inputs["predicted_positions"]] = batch.targets["targets"]
        targets = {"labels": labels.view(1, -1)}
    else:
        first, last = batch.targets["answer"].unbind(-1)
        targets = {"start_positions": first, "end_positions": last}
        inputs["token_type_ids"] = batch.inputs["segment_ids"]
    ours = float(task.loss(model, batch)) / int(task.train.predictions[row])
    assert ours == pytest.approx(float(theirs(**inputs, **targets).loss), rel=1e-4)


@torch.no_grad()
def test_questions_may_have_different_numbers_of_choices(tokenizer):
    task = prepared_rows("choices", tokenizer)
    outputs = task.outputs(task.build().eval(), task.batch(task.evaluation, np.arange(2)))
    assert outputs.isneginf().tolist() == [[False, False, True], [False] * 3]
    lines = [json.loads(line) for line in task.files(outputs.numpy())["predictions.jsonl"].splitlines()]
    assert [(len(line["scores"]), len(line["choices"])) for line in lines] == [(2, 2), (3, 3)]


def test_loss_of_a_regression_is_the_squared_error_and_its_submission_stays_in_range(tmp_path, tokenizer):
    test = EXCERPTS["stsb"].text("train.tsv").replace("\tscore", "").replace("\t3.800", "")
    config = task_of(tmp_path, EXCERPTS["stsb"], submit=False)
    (tmp_path / "test.tsv").write_text(test)
    task = prepare(config.model_copy(update={"submit": True}), tokenizer)
    model, batch = task.build().eval(), task.batch(task.train, np.arange(1))
    predicted = task.outputs(model, batch)
    torch.testing.assert_close(task.loss(model, batch), (predicted - 3.8).square().sum())
    (line,) = task.files(np.full((1, 1), 2.5))["predictions.jsonl"].splitlines()
    texts = {"text": "A plane.", "text_b": "A jet."}
    assert json.loads(line) == {"id": "dev-2", "label": 3.8, "prediction": 2.5} | texts
    for number, written in ((5.2, b"5.000"), (-0.1, b"0.000")):
        found = task.submission(np.array([[number]]))
        assert found == {"STS-B.tsv": b"index\tprediction\n0\t" + written + b"\n"}


def test_words_that_are_cut_count_as_outside_of_entities(tokenizer):
    rows = (
        TaggedSentence("1", ("good",) * 9, ("B-PER",) * 9),
        TaggedSentence("2", ("the", "film"), ("O", "B-PER")),
    )
    task = prepare(ConllNerConfig(**UNREAD), tokenizer, rows, ("O", "B-PER", "I-PER"), max_length=8)
    assert task.train.predictions.tolist() == [6, 2]
    batch = task.batch(task.train, np.array([1, 0]))
    assert batch.targets["positions"].tolist() == [[1, 2, *[ABSENT] * 7], [1, 2, 3, 4, 5, 6, *[ABSENT] * 3]]
    # Only words with a token are learnt.
    assert batch.targets["labels"].tolist() == [[0, 1, *[-100] * 7], [1] * 6 + [-100] * 3]
    outputs = np.full((2, 9), ABSENT)
    outputs[0, :6], outputs[1, :2] = 1, [0, 2]
    assert task.tags(outputs) == [["B-PER"] * 6 + ["O"] * 3, ["O", "I-PER"]]
    assert task.measure(outputs)["accuracy"] == 7 / 11


def test_entities_of_a_type_that_training_does_not_have_count_as_missed(tmp_path, tokenizer):
    (tmp_path / "train").write_text("EU B-ORG\na O\n")
    (tmp_path / "dev").write_text("EU B-ORG\na O\nRome B-LOC\n")
    task = prepare(ConllNerConfig(train=tmp_path / "train", evaluation=tmp_path / "dev"), tokenizer)
    assert task.labels == ("O", "B-ORG", "I-ORG")
    assert "B-LOC" in task.notes[0]
    measured = task.measure(np.array([[1, 0, 0]]))
    assert (measured["recall"], measured["precision"]) == (0.5, 1.0)


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
    # 3 right entities, 4 predicted, 1 in common, of the other two one has the wrong bounds, one the wrong type.
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "O"]]
    guessed = [
        ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"],
        ["B-ORG", "I-ORG", "O", "B-LOC", "B-LOC"],
    ]
    expected = {"precision": 1 / 4, "recall": 1 / 3, "f1": 2 / 7, "accuracy": 7 / 12}
    assert entity_metrics(right, guessed) == pytest.approx(expected)
    expected = {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "accuracy": 10 / 12}
    assert entity_metrics(right, [guessed[0], right[1]]) == pytest.approx(expected)
    assert entity_metrics([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("race", [1, 0, 1, 3], {"accuracy": 0.75, "accuracy_middle": 0.5, "accuracy_high": 1.0}),
        # Three right answers, four judged right, three in common; the second question has one wrong judgement.
        ("multirc", [1, 0, 1, 1, 1], {"f1_answers": 2 * 0.75 / 1.75, "exact_match": 0.5}),
        ("record", [0], {"f1": 1, "exact_match": 1}),
        ("record", [1], {"f1": 2 / 3, "exact_match": 0}),
        ("mnli", [2, 1, 2, 0], {"accuracy_matched": 1.0, "accuracy_mismatched": 0.5}),
    ],
)
def test_official_metrics_of_several_answers_or_sets(tmp_path, name, chosen, expected):
    config = task_of(tmp_path, EXCERPTS[name])
    outputs = np.eye(max(2, max(chosen) + 1))[chosen]
    assert config.measure(config.load().evaluation, outputs) == pytest.approx(expected)


@pytest.mark.parametrize("around", [0, 1500, 2999, 4000])
@pytest.mark.parametrize("length", [0, 10, EXCERPT_CHARACTERS, 3000])
def test_long_texts_are_repeated_around_a_character_and_others_whole(length: int, around: int):
    text = "".join(chr(0x4E00 + number) for number in range(length))
    found = excerpt(text, around)
    assert len(found) == min(length, EXCERPT_CHARACTERS)
    assert found in text
    assert not text or text[min(around, length - 1)] in found


ARTICLE = "(CNN) A man ran. He fell down a hill. A dog saw him. The dog barked at him. It was night."
HIGHLIGHTS = "A man fell down a hill .\nA dog barked ."
SWAPPED = "A dog barked . A man fell down a hill ."


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("One thing. Another one.", 1, "One thing."),
        ("A headline\nA text.", 1, "A headline"),
        ("Only this", 1, "Only this"),
        ("Größe in Köln. Ein Satz.", 1, "Größe in Köln."),
        (ARTICLE, 3, "(CNN) A man ran.\nHe fell down a hill.\nA dog saw him."),
        ("", 3, ""),
        ("One.", 3, "One."),
    ],
)
def test_first_sentences_end_at_a_line_end_or_where_the_next_begins(text, count, expected):
    assert first_sentences(["Before. That.", text], count)[1] == expected


@pytest.mark.parametrize(
    ("right", "written", "expected"),
    [
        # Four words in common (the, cat, on, mat) of six; one pair of neighbours of five; the four are in order.
        (
            "the cat sat on the mat",
            "the cat lay on a mat",
            {"rouge1": 4 / 6, "rouge2": 1 / 5, "rouge_l": 4 / 6, "rouge_lsum": 4 / 6},
        ),
        ("running dogs", "runs dog", {"rouge1": 1}),
        # Each line is looked for in all of the summary; of the nine words, the six of the first line are in order.
        (HIGHLIGHTS, SWAPPED, {"rouge_lsum": 1, "rouge_l": 6 / 9}),
    ],
)
def test_rouge_by_hand(right, written, expected):
    found = rouge([right], [written])
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_sentences_of_one_line_get_a_line_each():
    assert sentence_lines([SWAPPED, HIGHLIGHTS]) == [SWAPPED.replace(". ", ".\n"), HIGHLIGHTS]


def test_first_sentences_score_what_was_published_for_lead_1(corpora: Path):
    # Narayan et al. 2018, table 4: ROUGE-1, -2 and -L of LEAD are 16.30, 1.60 and 11.95 on all test documents.
    config = XsumConfig(evaluation=corpora / "xsum/test-1000.jsonl")
    pairs = list(read_xsum(config.evaluation))
    found = config.measure(pairs, first_sentences([config.lead(pair.source) for pair in pairs]))
    assert found == pytest.approx({"rouge1": 0.1630, "rouge2": 0.0160, "rouge_l": 0.1195}, abs=0.002)


def test_notes_of_the_web_page_are_no_first_sentence():
    lead, note = XsumConfig(evaluation=Path()).lead, "Media playback is not supported on this device\n"
    assert first_sentences([lead(f"{note}The match ended. It rained.")]) == ["The match ended."]
    assert lead(f"He said {note}B.") == f"He said {note}B."


def test_share_splits_the_documents_by_a_hash_of_their_ids(tmp_path):
    def split(count: int) -> tuple[set[TextPair], set[TextPair]]:
        rows = ({"id": n, "document": f"d {n}", "summary": "s"} for n in range(count))
        (tmp_path / "rows.jsonl").write_text(objects(*rows))
        data = XsumConfig(evaluation=tmp_path / "rows.jsonl", train_share=0.8).load()
        return set(data.train), set(data.evaluation)

    (train, evaluation), half = split(1000), split(500)
    assert len(train | evaluation) == len(train) + len(evaluation) == 1000
    assert 760 < len(train) < 840
    assert half[0] <= train
    assert half[1] <= evaluation


def test_smoothed_loss_is_the_mixture_of_target_and_uniform():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([0, 3, 6, 1, 1])
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(smoothed_loss(logits, targets, 0.1), expected)


def test_decoder_reads_source_and_prompt_and_predicts_the_summary(tokenizer):
    rows = (TextPair("1", "good film", "very bad"), TextPair("2", "plot", "one two three"))
    config = XsumConfig(**UNREAD, max_target_length=8, min_target_length=1, prompt="the")
    task = prepare(config, tokenizer, rows, network=GPT)
    batch = task.batch(task.train, np.arange(2))
    # <s> 0, <pad> 1, </s> 2; good 4, bad 5, film 6, plot 7, the 8, very 12, one 13, two 14, three 15
    assert batch.inputs["input_ids"].tolist() == [[0, 4, 6, 8, 12, 5], [0, 7, 8, 13, 14, 15]]
    assert batch.targets["targets"].tolist() == [12, 5, 2, 13, 14, 15, 2]
    assert batch.inputs["predicted_positions"].tolist() == [3, 4, 5, 8, 9, 10, 11]
    prompts, mask = batch.targets["prompts"], batch.targets["prompt_mask"]
    assert [prompts[row][mask[row]].tolist() for row in range(2)] == [[0, 4, 6, 8], [0, 7, 8]]
    assert mask[:, -1].all()


def test_bleu_and_chrf_are_those_of_sacrebleu_with_their_signatures():
    references, texts = ["The cat sat on the mat.", "It rains."], ["The cat sat on a mat.", "It rained."]
    found, signatures = translation_metrics(references, texts)
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        assert found[name] == metric.corpus_score(texts, [references]).score / 100
    assert 0 < found["bleu"] < found["chrf"] < 1
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
