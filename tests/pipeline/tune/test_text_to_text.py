"""CNN/DailyMail with Lead-3 and ROUGE by sentences, and translation with BLEU and chrF."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError
from models.language_models import SequenceToSequence
from pipeline.config.loading import validate
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.forms.generation import GenerationTask, first_sentences
from pipeline.tune.metrics.texts import rouge, sentence_lines, translation_metrics
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.tasks.translation import TranslationConfig
from pipeline.tune.tokenizer import TextTokenizer
from pipeline.tune.workload import scores_directory
from tests.pipeline.tune.conftest import make_checkpoint
from tests.pipeline.tune.samples import words_of
from tests.pipeline.tune.test_xsum import BART

ARTICLE = "(CNN) A man ran. He fell down a hill. A dog saw him. The dog barked at him. It was night."
HIGHLIGHTS = "A man fell down a hill .\nA dog barked ."


def test_first_three_sentences_are_the_baseline():
    expected = "(CNN) A man ran.\nHe fell down a hill.\nA dog saw him."
    assert first_sentences([ARTICLE], 3) == [expected]
    assert first_sentences(["", "One."], 3) == ["", "One."]


def test_rouge_by_sentences_looks_for_each_line_in_all_of_the_summary():
    swapped = "A dog barked . A man fell down a hill ."
    found = rouge([HIGHLIGHTS], [swapped])
    assert found["rouge_lsum"] == 1
    assert found["rouge_l"] < 1
    assert sentence_lines([swapped, HIGHLIGHTS]) == ["A dog barked .\nA man fell down a hill .", HIGHLIGHTS]


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
