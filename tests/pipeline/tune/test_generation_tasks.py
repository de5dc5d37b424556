"""Summaries and translations: Lead-N, ROUGE, BLEU and chrF, and what networks read and write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from models.language_models import smoothed_loss
from pipeline.tasks.forms import TextPair
from pipeline.tasks.generation import XsumConfig, read_xsum
from pipeline.tasks.metrics.texts import rouge, sentence_lines, translation_metrics
from pipeline.tune.forms.generation import first_sentences
from tests.pipeline.tasks.excerpts import objects
from tests.pipeline.tune.conftest import prepare
from tests.pipeline.tune.samples import GPT, UNREAD

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
    lead = XsumConfig(evaluation=Path()).lead
    document = "Media playback is not supported on this device\nThe match ended. It rained."
    assert first_sentences([lead(document)]) == ["The match ended."]
    inside = "He said Media playback is not supported on this device\nB."
    assert lead(inside) == inside


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
    targets, logs = torch.tensor([0, 3, 6, 1, 1]), logits.log_softmax(-1)
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
    expected = {
        name: make().corpus_score(texts, [references]).score
        for name, make in (("bleu", BLEU), ("chrf", CHRF))
    }
    assert found == {name: score / 100 for name, score in expected.items()}
    assert 0 < found["bleu"] < found["chrf"] < 1
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
