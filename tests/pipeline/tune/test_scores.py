"""Tables over seeds."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from pipeline.tasks.files.lines import json_lines
from pipeline.tune.scores import Initial, Score, same_prediction
from pipeline.tune.summary import GLUE_METRICS, glue_averages, protocol, summarise
from tests.pipeline.tune.written_scores import score_of


def score(task: str, initial: Initial, seed: int, value: float, **more: Any) -> Score:
    reference = "tiny@5" if initial == "pretrained" else None
    return score_of(task, {"accuracy": value}, 10, seed=seed, initial=initial, reference=reference, **more)


def test_rows_give_mean_and_sample_deviation_over_seeds():
    scores = [
        score("a", "pretrained", 1, 0.6),
        score("a", "random", 1, 0.5),
        score("a", "pretrained", 2, 0.8),
    ]
    first, second = summarise(scores)
    assert (first.task, first.initial, first.reference, first.num_seeds) == ("a", "pretrained", "tiny@5", 2)
    assert first.mean["accuracy"] == pytest.approx(0.7)
    assert first.std["accuracy"] == pytest.approx(0.02**0.5)
    assert (second.initial, second.num_seeds, second.std["accuracy"]) == ("random", 1, None)


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
    assert protocol(scores).endswith(
        f"a from random weights: in 1 of 2 trainings all predictions are the same ({same})"
        if same
        else "after the last epoch"
    )


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
    told = protocol(scores)
    assert "of 2 choices" in told
    assert "on which it is scored too" in told
    assert "after the last epoch" in told


def test_main_metric_comes_first():
    first = score_of("a", {"f1": 0.5, "accuracy": 0.6}, 10).model_copy(update={"main_metric": "accuracy"})
    assert list(summarise([first])[0].mean) == ["accuracy", "f1"]


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
