"""SQuAD: the official metrics of both versions, the way from characters to tokens and back, windows, and no answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.classifiers import best_spans
from pipeline.tasks.forms import Answer, Question
from pipeline.tasks.metrics.squad import (
    UNANSWERABLE_METRICS,
    answer_metrics,
    question_scores,
    unanswerable_metrics,
)
from pipeline.tasks.questions import Squad2Config, read_questions
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.forms.spans import (
    answer_questions,
    answer_tokens,
    encode_questions,
    own_tokens,
    text_of,
    window_spans,
)
from tests.pipeline.tune.conftest import MODEL
from tests.pipeline.tune.samples import UNREAD, byte_level, wordpiece


def test_scores_of_published_predictions_equal_the_official_ones(corpora: Path):
    questions = read_questions(corpora / "squad/dev-v1.1.json")
    published = json.loads((corpora / "squad/predictions/1.1/match-lstm.json").read_text())
    predictions = [published.get(question.id, "") for question in questions]
    assert len(questions) == 10570
    found = answer_metrics([each.right for each in questions], predictions)
    assert found == pytest.approx({"exact_match": 0.676348, "f1": 0.767556}, abs=5e-7)


@pytest.mark.parametrize(
    ("answers", "prediction", "exact", "f1"),
    [
        (["The Eiffel Tower!"], "eiffel  tower", 1, 1),
        (["blue", "red dog"], "red dog", 1, 1),
        (["big red dog", "cat"], "red dog", 0, 0.8),
        ([], "", 1, 1),
        ([], "something", 0, 0),
        # An article by itself is empty after normalisation, like no answer.
        ([], "the", 1, 1),
        # The only answer is dropped, so that the question counts as one without an answer.
        (["The"], "", 1, 1),
        (["red dog"], "", 0, 0),
        (["red dog"], "the", 0, 0),
    ],
)
def test_rules_of_the_official_script_by_hand(answers, prediction, exact, f1):
    found = question_scores([answers], [prediction])
    assert [float(side[0]) for side in found] == pytest.approx([exact, f1])


def test_first_version_gives_an_empty_prediction_nothing():
    assert answer_metrics([["the"]], [""]) == {"exact_match": 1, "f1": 0}


def step_by_step(scores: list[float], cases: list[tuple[list[str], str, float]]) -> tuple[float, float]:
    """The script's search for the best score and its threshold, question by question."""
    reached = best = sum(not answers for answers, _, _ in cases)
    threshold = 0.0
    for number in sorted(range(len(cases)), key=lambda number: cases[number][2]):
        answers, prediction, chance = cases[number]
        reached += scores[number] if answers else (-1 if prediction else 0)
        if reached > best:
            best, threshold = reached, chance
    return best / len(scores), threshold


CASES = st.lists(
    st.tuples(
        st.sampled_from([[], ["a"], ["red dog"], ["big red dog", "cat"], ["dog"]]),
        st.sampled_from(["", "the", "dog", "red dog", "big cat"]),
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(CASES)
def test_best_scores_are_those_of_the_step_by_step_search(cases):
    answers, predictions, chances = (list(side) for side in zip(*cases, strict=True))
    exact, f1 = (side.tolist() for side in question_scores(answers, predictions))
    found = unanswerable_metrics(answers, predictions, np.array(chances))
    assert set(found) == set(UNANSWERABLE_METRICS)
    for name, scores in (("exact", exact), ("f1", f1)):
        assert (found[f"best_{name}"], found[f"best_{name}_thresh"]) == step_by_step(scores, cases)
    assert found["f1"] == sum(f1) / len(cases)


@pytest.mark.corpora
def test_real_file_has_as_many_questions_without_an_answer_as_published_for_its_half(corpora):
    questions = read_questions(corpora / "squad/dev-v2.0.cs224n-half.json", answerable=False)
    assert len(questions) == 6078
    right, chances = [question.right for question in questions], np.zeros(len(questions))
    found = unanswerable_metrics(right, [""] * len(questions), chances)
    share = sum(not texts for texts in right) / len(questions)
    assert found["exact_match"] == found["f1"] == found["best_f1"] == share
    first = unanswerable_metrics(right, [(*texts, "")[0] for texts in right], chances)
    assert first["f1"] == found["no_answer_f1"] == 1


@pytest.mark.parametrize("make", [byte_level, wordpiece])
def test_every_real_answer_maps_to_tokens_that_hold_its_text(corpora, tmp_path, make):
    tokenizer = TextTokenizer(make(tmp_path / "tokenizer.json"))
    questions = read_questions(corpora / "squad/dev-v1.1.json")
    text = "Ein Café — naïve 日本語 🙂."
    answers = tuple(Answer(part, text.index(part)) for part in ("Café", "naïve", "日本語", "🙂"))
    questions.append(Question("several bytes", "", text, answers if make is byte_level else ()))
    contexts = list(dict.fromkeys(question.context for question in questions))
    offsets = {c: found for c, (_, found) in zip(contexts, tokenizer.ids_with_offsets(contexts), strict=True)}
    equal = []
    for context, answer in ((each.context, answer) for each in questions for answer in each.answers):
        tokens = answer_tokens(offsets[context], answer.start, answer.text)
        assert tokens is not None
        text = text_of(context, offsets[context], *tokens)
        assert answer.text in text
        equal.append(text == answer.text)
    assert np.mean(equal) > 0.98


def released_windows(num_tokens: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """BERT's loop, step by step."""
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, capacity)
        spans.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    return spans


def has_most_context(spans: list[tuple[int, int]], number: int, token: int) -> bool:
    """BERT's question whether a window is the one with most context for a token, step by step."""
    best_score, best = None, None
    for candidate, (start, length) in enumerate(spans):
        if start <= token < start + length:
            score = min(token - start, start + length - 1 - token) + 0.01 * length
            if best_score is None or score > best_score:
                best_score, best = score, candidate
    return best == number


@given(st.integers(1, 90), st.integers(1, 30), st.integers(1, 40))
def test_windows_and_their_own_tokens_are_those_of_the_released_code(num_tokens, capacity, stride):
    spans = window_spans(num_tokens, capacity, stride)
    assert spans == released_windows(num_tokens, capacity, stride)
    for number, (first, last) in enumerate(own_tokens(spans).tolist()):
        expected = [t for t in range(num_tokens) if has_most_context(spans, number, t)]
        assert list(range(first, last)) == expected


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_best_spans_are_those_of_exhaustive_search(seed, length, longest, n_best):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, length, 2, generator=generator)
    begins, ends = (torch.rand(2, length, generator=generator) < 0.7 for _ in range(2))
    found = best_spans(logits, begins, ends, max_length=longest, n_best=n_best)
    for row in range(2):
        allowed = [
            (float(logits[row, i, 0] + logits[row, j, 1]), i, j)
            for i in range(length)
            for j in range(i, min(length, i + longest))
            if begins[row, i] and ends[row, j]
        ]
        expected = sorted(allowed, reverse=True)[:n_best]
        kept = [(score, int(i), int(j)) for i, j, score in found[row].tolist() if np.isfinite(score)]
        assert [span[1:] for span in kept] == [span[1:] for span in expected]
        assert [span[0] for span in kept] == pytest.approx([span[0] for span in expected], abs=1e-5)


def test_no_answer_is_predicted_where_the_first_token_scores_higher(tokenizer):
    questions = [
        Question("q1", "was film", "the film was good", (Answer("good", 13),)),
        Question("q2", "was film", "the film was bad and the plot was good", ()),
    ]
    lengths = {"max_length": 11, "max_query_length": 1, "doc_stride": 3}
    windows = encode_questions(tokenizer, sequence_format(MODEL, tokenizer), questions, **lengths)
    assert windows.question.tolist() == [0, 1, 1]
    assert windows.answer[1:].tolist() == [[0, 0], [0, 0]]
    missing = [0.0, 0.0, -np.inf]
    outputs = np.array(
        [
            [[7.0, 7.0, 3.0], missing, [0.0, 0.0, 1.0]],
            [[4.0, 4.0, 2.0], [4.0, 5.0, 1.5], [0.0, 0.0, 9.0]],
            [[4.0, 4.0, 0.0], missing, [0.0, 0.0, 2.5]],
        ]
    )
    certain, searched, (predictions, n_best, no_answer) = (
        answer_questions(Squad2Config(**UNREAD, max_no_answer=most), questions, windows, outputs)
        for most in (1.0, None, 0.5)
    )
    # Of several windows, the one that is least certain of no answer counts: 2.5 against 2.
    assert predictions == searched[0] == ["good", ""]
    assert "" not in certain[0]
    assert no_answer == pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-0.5))])
    assert n_best[1][0][0] == ""
    assert [score for _, score in n_best[1]] == [2.5, 2.0, 1.5, 0.0][: len(n_best[1])]
