"""Summaries and translations: Lead-N, ROUGE, BLEU and chrF, and what networks read and write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from cluster.artefacts.errors import ConfigError
from models.language_models import smoothed_loss
from pipeline.config.loading import validate
from pipeline.tasks.forms import TextPair
from pipeline.tasks.generation import TranslationConfig, XsumConfig, read_xsum
from pipeline.tasks.metrics.texts import rouge, sentence_lines, translation_metrics
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms.generation import first_sentences
from tests.pipeline.tasks.excerpts import objects
from tests.pipeline.tune.conftest import prepare
from tests.pipeline.tune.samples import BART, GPT, UNREAD, prepared_rows, words_of

ARTICLE = "(CNN) A man ran. He fell down a hill. A dog saw him. The dog barked at him. It was night."
SIDES = {side: Path("unread") for side in ("source", "target", "train_source", "train_target")}
HIGHLIGHTS = "A man fell down a hill .\nA dog barked ."


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


def test_share_splits_the_documents_by_a_hash_of_their_ids(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(objects(*({"id": n, "document": f"d {n}", "summary": "s"} for n in range(1000))))
    data = XsumConfig(evaluation=path, train_share=0.8).load()
    assert len(data.train) + len(data.evaluation) == 1000
    assert 760 < len(data.train) < 840
    assert not {pair.id for pair in data.train} & {pair.id for pair in data.evaluation}
    lines = path.read_bytes().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_bytes(b"".join(lines[:500]))
    half = XsumConfig(evaluation=tmp_path / "half.jsonl", train_share=0.8).load()
    assert set(half.train) <= set(data.train)
    assert set(half.evaluation) <= set(data.evaluation)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"kind": "xsum", **UNREAD, "max_target_length": 8, "min_target_length": 8}, "min_target_length"),
        (
            {"kind": "translation", **SIDES, "target_language": "en_XX"},
            "needs language",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(task, said):
    with pytest.raises(ConfigError, match=said):
        validate(FinetuneConfig, {"tasks": {"own": task}}, "here")


def test_targets_written_as_outputs_give_the_summaries_back(tokenizer):
    task = prepared_rows("generation", tokenizer, BART)
    outputs = np.ones((2, 8), dtype=np.int64)
    for row in range(2):
        ids = task.evaluation.targets[row]
        outputs[row, : len(ids)] = ids
    assert task.texts(outputs) == ["film", "plot and film"]
    assert task.measure(outputs)["rouge1"] == 1


def test_smoothed_loss_is_the_mixture_of_target_and_uniform():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([0, 3, 6, 1, 1])
    logs = logits.log_softmax(-1)
    expected = -(0.9 * logs[torch.arange(5), targets] + 0.1 * logs.mean(-1)).sum()
    assert float(smoothed_loss(logits, targets, 0.1)) == pytest.approx(float(expected), rel=1e-6)


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
    assert found["bleu"] == BLEU().corpus_score(texts, [references]).score / 100
    assert found["chrf"] == CHRF().corpus_score(texts, [references]).score / 100
    assert 0 < found["bleu"] < found["chrf"] < 1
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")


def test_source_ends_with_its_language_and_target_starts_with_its_own(tmp_path):
    path = words_of("ein Film a good film", tmp_path / "words.json")
    config = TranslationConfig(**SIDES, language="film", target_language="good")
    tokenizer = TextTokenizer(path)
    task = prepare(config, tokenizer, (TextPair("1", "ein Film", "a film"),), network=BART)
    batch = task.batch(task.train, np.array([0]))
    german, english = tokenizer.id_of("film"), tokenizer.id_of("good")
    assert batch.inputs["input_ids"][0, -2:].tolist() == [2, german]
    assert int(batch.inputs["decoder_input_ids"][0, 0]) == english
