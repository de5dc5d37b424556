"""Tables over seeds, and confidence intervals over evaluation examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pytest

from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.metrics import measure
from pipeline.tasks.metrics.entities import entity_metrics
from pipeline.tasks.metrics.squad import answer_metrics, unanswerable_metrics
from pipeline.tasks.metrics.texts import rouge
from pipeline.tune.report.bootstrap import confidence_interval, resampled, sums_of
from pipeline.tune.scores import Initial, Score, same_prediction
from pipeline.tune.summary import GLUE_METRICS, glue_averages, protocol, summarise
from tests.pipeline.tune.written_scores import label_lines, score_of

NAMES = ("a", "b", "c")


def score(task: str, initial: Initial, seed: int, value: float, **more: Any) -> Score:
    reference = "tiny@5" if initial == "pretrained" else None
    return score_of(task, {"accuracy": value}, 10, seed=seed, initial=initial, reference=reference, **more)


def test_rows_give_mean_and_sample_deviation_over_seeds():
    first, second = summarise(
        [
            score("a", "pretrained", 1, 0.6),
            score("a", "random", 1, 0.5),
            score("a", "pretrained", 2, 0.8),
        ]
    )
    assert (first.task, first.initial, first.reference, first.num_seeds) == ("a", "pretrained", "tiny@5", 2)
    assert (first.mean["accuracy"], first.std["accuracy"]) == pytest.approx((0.7, 0.02**0.5))
    assert (second.initial, second.num_seeds, second.std["accuracy"]) == ("random", 1, None)
    main = score_of("a", {"f1": 0.5, "accuracy": 0.6}, 10).model_copy(update={"main_metric": "accuracy"})
    assert list(summarise([main])[0].mean) == ["accuracy", "f1"]


def test_baselines_stand_once_behind_their_task():
    baselines = {"first sentence": {"accuracy": 0.3}}
    scores = [score("a", "pretrained", seed, 0.6, baselines=baselines) for seed in (1, 2)]
    scores += [score("a", "random", 1, 0.5, baselines=baselines), score("b", "random", 1, 0.1)]
    rows = summarise(scores)
    assert [(row.task, row.initial, row.reference) for row in rows] == [
        ("a", "pretrained", "tiny@5"),
        ("a", None, "first sentence"),
        ("a", "random", None),
        ("b", "random", None),
    ]
    assert (rows[1].mean, rows[1].std, rows[1].num_seeds) == ({"accuracy": 0.3}, {"accuracy": None}, 0)


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        (({"prediction": "1"}, {"prediction": "1"}), "'1'"),
        (({"prediction": "1"}, {"prediction": "0"}), None),
        (({"predictions": ["O", "O"]}, {"predictions": ["O"]}), "'O'"),
        (({"predictions": ["O", "B"]},), None),
        (({"prediction": ""},), "''"),
        (({"loss": 1.0},), None),
    ],
)
def test_predictions_that_are_all_the_same_are_named(lines: tuple, same: str | None):
    assert same_prediction(json_lines(lines)) == same
    scores = [score("a", "random", 1, 0.5, same_prediction=same), score("a", "random", 2, 0.5)]
    told = f"a from random weights: in 1 of 2 trainings all predictions are the same ({same})"
    assert protocol(scores).endswith(told if same else "after the last epoch")


def test_search_reports_the_choice_with_the_best_median_and_says_so():
    found = {1e-5: (0.1, 0.8, 0.9), 2e-5: (0.81, 0.82, 0.83)}
    scores = [
        score("a", "pretrained", seed, value, choice={"lr": lr})
        for lr, values in found.items()
        for seed, value in enumerate(values)
    ]
    (row,) = summarise(scores)
    assert (row.choice, row.num_choices, row.num_seeds, row.median["accuracy"]) == ({"lr": 2e-5}, 2, 3, 0.82)
    assert [row.choice["lr"] for row in summarise(scores, all_choices=True)] == [1e-5, 2e-5]
    expected = ["of 2 choices", "on which it is scored too", "after the last epoch"]
    assert [text for text in expected if text not in protocol(scores)] == []


def test_average_of_glue_is_given_where_all_tasks_are_there():
    scores = [
        score_of(f"my-{kind}", dict.fromkeys(metrics, 0.5), 10, reference="tiny@5")
        for kind, metrics in GLUE_METRICS.items()
    ]
    kinds = {f"my-{kind}": kind for kind in GLUE_METRICS}
    assert glue_averages(summarise(scores), kinds) == {"tiny@5": 0.5}
    assert glue_averages(summarise(scores[1:]), kinds) == {}


def test_score_that_is_no_number_is_read_back_as_such():
    lost = score("a", "pretrained", 1, math.nan)
    read = Score.model_validate(orjson.loads(orjson.dumps(lost.model_dump(mode="json"))))
    assert math.isnan(read.value)
    assert math.isnan(read.epochs[0].metrics["accuracy"])


def random_lines(count: int, names: tuple[str, ...]) -> tuple[list, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    right = draw.integers(len(names), size=count)
    guessed = np.where(draw.random(count) < 0.6, right, draw.integers(len(names), size=count))
    pairs = [(names[r], names[g]) for r, g in zip(right, guessed, strict=True)]
    return label_lines(pairs, names), right, guessed


def value(metric: str, lines: list, labels: tuple[str, ...] = ()) -> float:
    sums = sums_of(metric, lines, labels)
    assert sums is not None
    return float(sums.value(sums.columns.sum(0)))


def test_interval_of_an_accuracy_is_near_the_normal_one_and_seeds_share_their_resamples():
    lines = label_lines([("a", "a")] * 320 + [("a", "b")] * 80, NAMES)
    found = confidence_interval("accuracy", [(lines, 0.8)], NAMES)
    half = 1.96 * (0.8 * 0.2 / 400) ** 0.5
    assert found == pytest.approx((0.8 - half, 0.8 + half), abs=0.006)
    assert found == confidence_interval("accuracy", [(lines, 0.8)], NAMES)
    equal = label_lines([("a", "a")] * 30, NAMES)
    assert confidence_interval("accuracy", [(equal, 1.0)], NAMES) == (1.0, 1.0)
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
    ("keys", "right", "predicted", "measured"),
    [
        (("answers", "prediction"), ANSWERS, ANSWERED, answer_metrics(ANSWERS, ANSWERED)),
        (
            ("answers", "prediction"),
            OR_NONE,
            OR_NOTHING,
            {"f1": unanswerable_metrics(OR_NONE, OR_NOTHING, np.zeros(3))["f1"]},
        ),
        (("reference", "prediction"), TEXTS, WRITTEN, rouge(TEXTS, WRITTEN)),
        (
            ("tags", "predictions"),
            TAGS,
            TAGGED,
            {metric: entity_metrics(TAGS, TAGGED)[metric] for metric in ("f1", "accuracy")},
        ),
    ],
    ids=["spans", "spans or none", "texts", "tags"],
)
def test_scores_of_other_forms_are_functions_of_sums(keys, right, predicted, measured):
    further = {"n_best": []} if "answers" in keys else {}
    lines = [dict(zip(keys, pair, strict=True)) | further for pair in zip(right, predicted, strict=True)]
    assert {metric: value(metric, lines) for metric in measured} == pytest.approx(measured)


def test_a_score_that_the_predictions_do_not_have_gets_no_interval():
    lines, *_ = random_lines(20, NAMES)
    asked = [("accuracy", [(lines, 0.123)]), ("unheard_of", [(lines, 0.5)]), ("accuracy", [([], 0.5)])]
    found = [
        confidence_interval(metric, trainings, NAMES) for metric, trainings in (*asked, ("accuracy", []))
    ]
    assert found == [None] * 4
