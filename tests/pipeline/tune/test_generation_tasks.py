"""Summaries and translations: Lead-N, ROUGE, BLEU and chrF, what is learnt and written, and whole trainings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError, MismatchError
from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import (
    CausalLanguageModel,
    ConditionalGenerator,
    SequenceToSequence,
    smoothed_loss,
)
from pipeline.config.loading import validate
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.export import load_finetuned
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.forms.generation import GenerationTask, first_sentences
from pipeline.tune.metrics.texts import rouge, sentence_lines, translation_metrics
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.summary import summarise
from pipeline.tune.tasks.summaries import XsumConfig, read_xsum
from pipeline.tune.tasks.translation import TranslationConfig
from pipeline.tune.tokenizer import TextTokenizer
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import make_checkpoint
from tests.pipeline.tune.samples import words_of, xsum_sample

ARTICLE = "(CNN) A man ran. He fell down a hill. A dog saw him. The dog barked at him. It was night."
HIGHLIGHTS = "A man fell down a hill .\nA dog barked ."
BART = TransformerConfig(
    network="encoder_decoder",
    vocab_size=1000,
    num_layers=1,
    hidden_size=64,
    num_heads=2,
    intermediate_size=128,
    max_positions=64,
    dropout=0.0,
    attention_dropout=0.0,
)


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
        (HIGHLIGHTS, "A dog barked . A man fell down a hill .", {"rouge_lsum": 1, "rouge_l": 6 / 9}),
    ],
)
def test_rouge_by_hand(right, written, expected):
    found = rouge([right], [written])
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_sentences_of_one_line_get_a_line_each():
    swapped = "A dog barked . A man fell down a hill ."
    assert sentence_lines([swapped, HIGHLIGHTS]) == ["A dog barked .\nA man fell down a hill .", HIGHLIGHTS]


def test_first_sentences_score_what_was_published_for_lead_1(corpora: Path):
    # Narayan et al. 2018, table 4: ROUGE-1, -2 and -L of LEAD are 16.30, 1.60 and 11.95 on all test documents.
    config = XsumConfig(evaluation=corpora / "xsum/test-1000.jsonl")
    pairs = list(read_xsum(config.evaluation))
    found = config.measure(pairs, first_sentences([config.lead(pair.source) for pair in pairs]))
    published = {"rouge1": 0.1630, "rouge2": 0.0160, "rouge_l": 0.1195}
    assert found == pytest.approx(published, abs=0.002)


def test_notes_of_the_web_page_are_no_first_sentence():
    config = XsumConfig(evaluation=Path())
    document = "Media playback is not supported on this device\nThe match ended. It rained."
    assert first_sentences([config.lead(document)]) == ["The match ended."]
    inside = "He said Media playback is not supported on this device\nB."
    assert config.lead(inside) == inside


def test_share_splits_the_documents_by_a_hash_of_their_ids(corpora: Path, tmp_path):
    path = corpora / "xsum/test-1000.jsonl"
    data = XsumConfig(evaluation=path, train_share=0.8).load()
    assert len(data.train) + len(data.evaluation) == 1000
    assert 760 < len(data.train) < 840
    assert not {pair.id for pair in data.train} & {pair.id for pair in data.evaluation}
    lines = path.read_bytes().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_bytes(b"".join(lines[:500]))
    half = XsumConfig(evaluation=tmp_path / "half.jsonl", train_share=0.8).load()
    assert set(half.train) <= set(data.train)
    assert set(half.evaluation) <= set(data.evaluation)


def test_shortest_summary_must_be_below_the_longest():
    task = {"kind": "xsum", "evaluation": "x", "max_target_length": 8, "min_target_length": 8}
    with pytest.raises(ConfigError, match="min_target_length 8 must be below"):
        validate(FinetuneConfig, {"tasks": {"xsum": task}}, "here")


GPT = dataclasses.replace(BART, network="decoder", norm="pre", embedding_norm=False, max_positions=128)


def prepared(corpora: Path, tmp_path: Path, network: TransformerConfig = BART, **changes) -> GenerationTask:
    path = xsum_sample(corpora, tmp_path / "xsum.jsonl", 6)
    config = XsumConfig(evaluation=path, train=path, max_target_length=60, num_beams=2, **changes)
    tokenizer = TextTokenizer(words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json"))
    settings = TrainingConfig(max_length=48)
    return GenerationTask(TaskContext(config, config.load(), settings, network, tokenizer))


def test_decoder_reads_the_summary_shifted_and_predicts_all_of_it(corpora: Path, tmp_path):
    task = prepared(corpora, tmp_path)
    batch = task.batch(task.train, np.arange(3))
    bos, eos, pad = 0, 2, 1
    read, predicted = batch.inputs["decoder_input_ids"], batch.inputs["predicted_positions"]
    written = torch.full(read.shape, pad).flatten().index_put((predicted,), batch.targets["targets"])
    written = written.view(read.shape)
    assert read[:, 0].tolist() == [eos] * 3
    assert written[:, 0].tolist() == [bos] * 3
    for row, length in enumerate(task.train.predictions[:3]):
        assert read[row, 1:length].tolist() == written[row, : length - 1].tolist()
        assert written[row, length - 1] == eos
        assert set(written[row, length:].tolist()) <= {pad}
    assert len(predicted) == task.train.predictions[:3].sum()


def test_targets_written_as_outputs_give_the_summaries_back(corpora: Path, tmp_path):
    task = prepared(corpora, tmp_path, min_target_length=1)
    outputs = np.ones((6, 60), dtype=np.int64)
    for row in range(6):
        ids = task.evaluation.targets[row]
        outputs[row, : len(ids)] = ids
    texts = task.texts(outputs)
    assert task.measure(outputs) == {"rouge1": 1, "rouge2": 1, "rouge_l": 1}
    assert all("<" not in text for text in texts)


def test_loss_of_a_pair_does_not_depend_on_its_batch(corpora: Path, tmp_path):
    task = prepared(corpora, tmp_path)
    model = ConditionalGenerator(BART).eval()
    init_weights(model, 1)
    with torch.no_grad():
        together = float(task.loss(model, task.batch(task.train, np.arange(4))))
        alone = [float(task.loss(model, task.batch(task.train, np.array([row])))) for row in range(4)]
    assert together == pytest.approx(sum(alone), rel=1e-5)


def test_smoothed_loss_is_the_mixture_of_target_and_uniform():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([0, 3, 6, 1, 1])
    logs = logits.log_softmax(-1)
    expected = -(0.9 * logs[torch.arange(5), targets] + 0.1 * logs.mean(-1)).sum()
    assert float(smoothed_loss(logits, targets, 0.1)) == pytest.approx(float(expected), rel=1e-6)


def by_heart(path: Path, *, num_beams: int, batch_size: int) -> dict[str, Any]:
    """Settings that learn the summaries of a file, and write them again."""
    files = {"evaluation": path, "train": path}
    training = {"epochs": 80, "batch_size": batch_size, "lr": 5e-3, "max_length": 48, "scored": "last_epoch"}
    task = {"kind": "xsum", **files, "max_target_length": 60, "num_beams": num_beams}
    return {"tasks": {"xsum": task}, "training": training, "seeds": [1]}


def test_summaries_are_learnt_by_heart_and_lead_1_stands_beside_them(
    corpora: Path, tmp_path, make_config, recorder
):
    path = xsum_sample(corpora, tmp_path / "xsum.jsonl", 6)
    tokenizer = words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json")
    checkpoint = make_checkpoint(tmp_path / "bart", tokenizer, network=SequenceToSequence(BART))
    config = make_config(**by_heart(path, num_beams=2, batch_size=6))
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "rouge1"
    assert score.metrics["rouge2"] > 0.9
    assert score.baselines["lead-1"]["rouge1"] < score.metrics["rouge1"]
    # The loss counts tokens: the smoothed one cannot reach zero, and starts near that of the uniform distribution.
    assert score.epochs[0].loss == pytest.approx(np.log(1000), rel=0.1)
    assert [(row.reference, row.num_seeds) for row in summarise([score])] == [("tiny@5", 1), ("lead-1", 0)]
    logged = [metrics for metrics, _, model_id in recorder.runs[0].metrics if model_id is None]
    assert {"xsum/lead-1/rouge1", "xsum/lead-1/rouge2", "xsum/lead-1/rouge_l"} in [set(m) for m in logged]
    assert ({f"xsum/{name}": value for name, value in score.metrics.items()}, 80, "m-1") in recorder.runs[
        0
    ].metrics
    lines = (scores_directory(config, checkpoint) / "predictions-xsum-pretrained-1.jsonl").read_bytes()
    rows = [orjson.loads(line) for line in lines.splitlines()]
    measured = rouge([row["reference"] for row in rows], [row["prediction"] for row in rows])
    assert {name: measured[name] for name in score.metrics} == pytest.approx(score.metrics)


def test_decoder_reads_source_and_prompt_and_predicts_the_summary(corpora: Path, tmp_path):
    task = prepared(corpora, tmp_path, network=GPT, prompt="the")
    batch = task.batch(task.train, np.arange(3))
    bos, eos, pad = 0, 2, 1
    read, predicted = batch.inputs["input_ids"], batch.inputs["predicted_positions"]
    the = task.tokenizer.id_of("the")
    for row in range(3):
        source, target = task.train.sources[row].tolist(), task.train.targets[row].tolist()
        assert (source[0], source[-1], target[-1]) == (bos, the, eos)
        joined = [*source, *target[:-1]]
        assert read[row].tolist() == joined + [pad] * (read.shape[1] - len(joined))
        mask = batch.targets["prompt_mask"][row]
        assert batch.targets["prompts"][row][mask].tolist() == source
        assert mask[-1]
        places = predicted[(predicted // read.shape[1]) == row] % read.shape[1]
        assert [int(read.flatten()[row * read.shape[1] + place]) for place in places] == [the, *target[:-1]]
    assert batch.targets["targets"].tolist() == [
        token for row in range(3) for token in task.train.targets[row].tolist()
    ]


def test_summaries_are_learnt_by_heart_with_a_decoder_behind_its_prompt(
    corpora: Path, tmp_path, make_config, recorder
):
    path = xsum_sample(corpora, tmp_path / "xsum.jsonl", 4)
    tokenizer = words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json")
    checkpoint = make_checkpoint(tmp_path / "gpt", tokenizer, network=CausalLanguageModel(GPT))
    config = make_config(**by_heart(path, num_beams=1, batch_size=4))
    config = config.model_copy(update={"save_models": True})
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.metrics["rouge2"] > 0.8
    source = load_finetuned(scores_directory(config, checkpoint))
    assert source.head == "causal_lm"
    assert source.state_dict.keys() == checkpoint.state_dict().keys()


def test_encoder_is_refused_for_generation_before_training(make_config, checkpoint, corpora, tmp_path):
    path = xsum_sample(corpora, tmp_path / "xsum.jsonl", 20)
    config = make_config(tasks={"xsum": {"kind": "xsum", "evaluation": path}})
    with pytest.raises(
        MismatchError, match=r"needs an encoder-decoder \(BART, mBART, T5\) or a decoder .* an enc"
    ):
        finetune(config, checkpoint)


def test_summary_longer_than_the_positions_is_refused(make_config, corpora, tmp_path, tokenizer_path):
    path = xsum_sample(corpora, tmp_path / "xsum.jsonl", 20)
    tiny = dataclasses.replace(BART, vocab_size=32, max_positions=32)
    checkpoint = make_checkpoint(tmp_path / "bart", tokenizer_path, network=SequenceToSequence(tiny))
    config = make_config(tasks={"xsum": {"kind": "xsum", "evaluation": path, "max_target_length": 32}})
    with pytest.raises(MismatchError, match=r"only 32 positions.\n.*tasks.xsum.max_target_length=31"):
        finetune(config, checkpoint)


def test_summaries_of_several_sentences_are_trained_with_lead_3_beside_them(tmp_path, make_config, recorder):
    path = tmp_path / "train.jsonl"
    rows = [
        {"id": n, "article": f"{word} {ARTICLE}", "highlights": f"{word} fell."}
        for n, word in enumerate("xyz")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = words_of(path.read_text(), tmp_path / "words.json")
    checkpoint = make_checkpoint(tmp_path / "bart", tokenizer, network=SequenceToSequence(BART))
    task = {"kind": "cnn_dailymail", "train": path, "evaluation": path, "num_beams": 1}
    config = make_config(
        tasks={"cnn": {**task, "max_target_length": 12, "min_target_length": 1}},
        training={"epochs": 1, "batch_size": 3, "max_length": 48},
        seeds=[1],
    )
    (score,) = finetune(config, checkpoint, track=recorder)
    assert set(score.metrics) == {"rouge1", "rouge2", "rouge_lsum", "rouge_l"}
    assert score.baselines["lead-3"].keys() == score.metrics.keys()


def test_bleu_and_chrf_are_those_of_sacrebleu_with_their_signatures():
    references, texts = ["The cat sat on the mat.", "It rains."], ["The cat sat on a mat.", "It rained."]
    found, signatures = translation_metrics(references, texts)
    assert found["bleu"] == BLEU().corpus_score(texts, [references]).score / 100
    assert found["chrf"] == CHRF().corpus_score(texts, [references]).score / 100
    assert 0 < found["bleu"] < found["chrf"] < 1
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")


def write_parallel(folder: Path, source: str = "ein Film\ngut\n", target: str = "a film\ngood\n") -> dict:
    (folder / "train.de").write_text(source, encoding="utf-8")
    (folder / "train.en").write_text(target, encoding="utf-8")
    sides = {"source": folder / "train.de", "target": folder / "train.en"}
    return sides | {f"train_{name}": path for name, path in sides.items()}


def test_tag_of_the_targets_needs_the_one_of_the_sources(tmp_path):
    task = {"kind": "translation", **write_parallel(tmp_path), "target_language": "en_XX"}
    with pytest.raises(ConfigError, match="target_language needs language"):
        validate(FinetuneConfig, {"tasks": {"wmt": task}}, "here")


def with_tags(path: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["de_DE", "en_XX"])
    tokenizer.save(str(path))
    return path


def test_source_ends_with_its_language_and_target_starts_with_its_own(tmp_path):
    paths = write_parallel(tmp_path)
    path = with_tags(words_of("ein Film gut a film good", tmp_path / "words.json"))
    tokenizer = TextTokenizer(path)
    config = TranslationConfig(**paths, language="de_DE", target_language="en_XX")
    network = dataclasses.replace(BART, vocab_size=tokenizer.vocab_size)
    settings = TrainingConfig(max_length=16)
    task = GenerationTask(TaskContext(config, config.load(), settings, network, tokenizer))
    batch = task.batch(task.train, np.array([0]))
    german, english = tokenizer.id_of("de_DE"), tokenizer.id_of("en_XX")
    assert batch.inputs["input_ids"][0, -2:].tolist() == [2, german]
    assert int(batch.inputs["decoder_input_ids"][0, 0]) == english


def test_translations_are_learnt_by_heart_and_their_signatures_kept(tmp_path, make_config, recorder):
    source = [
        "der Hund lief heute",
        "eine Katze schlief dort",
        "wir sahen kein Haus",
        "sie fand mein altes Buch",
    ]
    target = [
        "the dog ran today",
        "one cat was asleep there",
        "we did not see any house",
        "she found my old book",
    ]
    paths = write_parallel(tmp_path, *("\n".join(lines) + "\n" for lines in (source, target)))
    tokenizer = with_tags(words_of(" ".join([*source, *target]), tmp_path / "words.json"))
    checkpoint = make_checkpoint(tmp_path / "mbart", tokenizer, network=SequenceToSequence(BART))
    tags = {"language": "de_DE", "target_language": "en_XX"}
    config = make_config(
        tasks={"wmt": {"kind": "translation", "num_beams": 2, "max_target_length": 12, **tags, **paths}},
        training={"epochs": 60, "batch_size": 4, "lr": 5e-3, "max_length": 16, "scored": "last_epoch"},
        seeds=[1],
    )
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "bleu"
    assert score.metrics["bleu"] > 0.9
    assert score.metrics["chrf"] > 0.9
    assert score.baselines == {}
    kept = orjson.loads(
        (scores_directory(config, checkpoint) / "signatures-wmt-pretrained-1.json").read_bytes()
    )
    assert kept["bleu"].startswith("nrefs:1|case:mixed|")
