"""Metrics against scikit-learn and by hand, also where they are hardly defined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipeline.demo.tasks import TASKS
from pipeline.finetune.forms.spans.task import ANSWER_METRICS
from pipeline.finetune.metrics import METRICS, measure
from pipeline.finetune.metrics.rouge import ROUGE_NAMES

RANDOM = np.random.Generator(np.random.Philox(key=1))


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_equal_scikit_learn_on_random_predictions(classes):
    labels, predictions = RANDOM.integers(0, classes, (2, 200))
    found = measure(METRICS, labels, predictions)
    assert found["accuracy"] == accuracy_score(labels, predictions)
    assert found["matthews"] == matthews_corrcoef(labels, predictions)
    assert found["macro_f1"] == f1_score(labels, predictions, average="macro")
    if classes == 2:
        assert found["f1"] == f1_score(labels, predictions)


def test_matthews_by_hand():
    # 3 true positives, 4 true negatives, 1 false positive, 2 false negatives: (12 - 2) / sqrt(4 * 5 * 5 * 6)
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0, 1, 1])
    predictions = np.array([1, 1, 1, 0, 0, 0, 0, 1, 0, 0])
    assert measure(["matthews"], labels, predictions)["matthews"] == pytest.approx(10 / 600**0.5)


@pytest.mark.parametrize("constant", [0, 1])
def test_constant_predictions_give_zero_matthews_without_a_warning(constant):
    labels, predictions = np.array([0, 1, 1, 0]), np.full(4, constant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(["matthews", "f1", "macro_f1", "accuracy"], labels, predictions)
    assert found["matthews"] == 0
    assert found["accuracy"] == 0.5
    assert found["f1"] == pytest.approx(constant * 2 / 3)


def test_nothing_positive_anywhere_gives_zero_f1():
    nothing = np.zeros(4, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure(["f1", "matthews"], nothing, nothing) == {"f1": 0.0, "matthews": 0.0}


@pytest.mark.parametrize("kind", TASKS)
def test_tasks_only_name_metrics_that_exist(kind):
    measured = {"classification": METRICS, "spans": ANSWER_METRICS, "generation": ROUGE_NAMES}
    assert set(TASKS[kind].metrics) <= measured[TASKS[kind].form].keys()
