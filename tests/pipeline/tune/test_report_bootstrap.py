"""Confidence intervals over evaluation examples."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.tasks.metrics import measure
from pipeline.tasks.metrics.entities import entity_metrics
from pipeline.tasks.metrics.squad import answer_metrics, unanswerable_metrics
from pipeline.tasks.metrics.texts import rouge
from pipeline.tune.report.bootstrap import confidence_interval, resampled, sums_of
from tests.pipeline.tune.written_scores import label_lines

NAMES = ("a", "b", "c")


def random_lines(count: int, names: tuple[str, ...], seed: int = 0) -> tuple[list, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    right = draw.integers(len(names), size=count)
    guessed = np.where(draw.random(count) < 0.6, right, draw.integers(len(names), size=count))
    return (
        label_lines([(names[r], names[g]) for r, g in zip(right, guessed, strict=True)], names),
        right,
        guessed,
    )


def value(metric: str, lines: list, labels: tuple[str, ...] = ()) -> float:
    sums = sums_of(metric, lines, labels)
    assert sums is not None
    return float(sums.value(sums.columns.sum(0)))


def test_interval_of_an_accuracy_is_near_the_normal_one():
    pairs = [("a", "a")] * 320 + [("a", "b")] * 80
    found = confidence_interval("accuracy", [(label_lines(pairs, NAMES), 0.8)], NAMES)
    assert found is not None
    half = 1.96 * (0.8 * 0.2 / 400) ** 0.5
    assert found[0] == pytest.approx(0.8 - half, abs=0.006)
    assert found[1] == pytest.approx(0.8 + half, abs=0.006)
    assert found == confidence_interval("accuracy", [(label_lines(pairs, NAMES), 0.8)], NAMES)


def test_interval_of_equal_predictions_has_no_width():
    lines = label_lines([("a", "a")] * 30, NAMES)
    found = confidence_interval("accuracy", [(lines, 1.0)], NAMES)
    assert found is not None
    assert found == (1.0, 1.0)


def test_seeds_share_their_resamples():
    lines, *_ = random_lines(50, NAMES)
    sums = sums_of("accuracy", lines, NAMES)
    assert sums is not None
    assert resampled([sums, sums], 20).tolist() == resampled([sums], 20).tolist()


@pytest.mark.parametrize(
    ("metric", "names"),
    [("accuracy", NAMES), ("matthews", NAMES), ("macro_f1", NAMES), ("f1", NAMES[:2])],
)
def test_metrics_of_labels_are_functions_of_sums(metric: str, names: tuple[str, ...]):
    lines, right, guessed = random_lines(200, names)
    assert value(metric, lines, names) == pytest.approx(measure([metric], right, guessed)[metric], abs=1e-12)


def test_correlations_are_functions_of_sums_and_zero_for_constants():
    draw = np.random.default_rng(1)
    right = draw.random(100) * 5
    guessed = right + draw.normal(size=100) + 1000
    lines = [{"label": float(r), "prediction": float(g)} for r, g in zip(right, guessed, strict=True)]
    assert value("pearson", lines) == pytest.approx(measure(["pearson"], right, guessed)["pearson"], abs=1e-9)
    assert value("pearson", [{"label": 1.0, "prediction": 2.0}] * 3) == 0
    assert value("matthews", label_lines([("a", "b"), ("b", "b")], NAMES), NAMES) == 0


def test_accuracy_of_a_group_counts_its_examples_only():
    lines = label_lines([("a", "a"), ("a", "b"), ("a", "a")], NAMES)
    for line, group in zip(lines, ("matched", "matched", "mismatched"), strict=True):
        line["group"] = group
    assert (value("accuracy_matched", lines, NAMES), value("accuracy_mismatched", lines, NAMES)) == (0.5, 1.0)


ANSWERS, ANSWERED = [["the red car"], ["a", "b c"], ["x"]], ["red", "b", "x"]
OR_NONE, OR_NOTHING = [[], *ANSWERS[1:]], ["", *ANSWERED[1:]]
TEXTS, WRITTEN = ["A red car. It runs.", "one line"], ["A car runs. It is red.", "two lines"]
TAGS, TAGGED = [["B-X", "I-X", "O"], ["B-Y"]], [["B-X", "O", "O"], ["B-Y"]]


@pytest.mark.parametrize(
    ("lines", "measured"),
    [
        (
            [{"answers": r, "prediction": g, "n_best": []} for r, g in zip(ANSWERS, ANSWERED, strict=True)],
            answer_metrics(ANSWERS, ANSWERED),
        ),
        (
            [{"answers": r, "prediction": g, "n_best": []} for r, g in zip(OR_NONE, OR_NOTHING, strict=True)],
            {"f1": unanswerable_metrics(OR_NONE, OR_NOTHING, np.zeros(3))["f1"]},
        ),
        (
            [{"reference": r, "prediction": g} for r, g in zip(TEXTS, WRITTEN, strict=True)],
            rouge(TEXTS, WRITTEN),
        ),
        (
            [{"words": r, "tags": r, "predictions": g} for r, g in zip(TAGS, TAGGED, strict=True)],
            {metric: entity_metrics(TAGS, TAGGED)[metric] for metric in ("f1", "accuracy")},
        ),
    ],
    ids=["spans", "spans or none", "texts", "tags"],
)
def test_scores_of_other_forms_are_functions_of_sums(lines, measured):
    for metric, expected in measured.items():
        assert value(metric, lines) == pytest.approx(expected)


def test_a_score_that_the_predictions_do_not_have_gets_no_interval():
    lines, *_ = random_lines(20, NAMES)
    assert confidence_interval("accuracy", [(lines, 0.123)], NAMES) is None
    assert confidence_interval("unheard_of", [(lines, 0.5)], NAMES) is None
    assert confidence_interval("accuracy", [([], 0.5)], NAMES) is None
    assert confidence_interval("accuracy", [], NAMES) is None
