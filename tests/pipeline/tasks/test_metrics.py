"""Metrics against scikit-learn and by hand, also where they are hardly defined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipeline.tasks import TASKS
from pipeline.tasks.forms import Choices, Example, TaggedSentence
from pipeline.tasks.generation import TranslationConfig
from pipeline.tasks.metrics import measure
from pipeline.tasks.metrics.squad import UNANSWERABLE_METRICS
from pipeline.tasks.metrics.texts import ROUGE_NAMES
from pipeline.tune.summary import GLUE_METRICS, glue_average

RANDOM = np.random.Generator(np.random.Philox(key=1))


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_equal_scikit_learn_on_random_predictions(classes):
    labels, predictions = RANDOM.integers(0, classes, (2, 200))
    found = measure(
        ["accuracy", "matthews", "macro_f1", "f1"][: 4 if classes == 2 else 3], labels, predictions
    )
    assert found["accuracy"] == accuracy_score(labels, predictions)
    assert found["matthews"] == matthews_corrcoef(labels, predictions)
    assert found["macro_f1"] == f1_score(labels, predictions, average="macro")
    if classes == 2:
        assert found["f1"] == f1_score(labels, predictions)


@pytest.mark.parametrize(("right", "constant", "f1"), [(2, 0, 0.0), (2, 1, 2 / 3), (0, 0, 0.0)])
def test_constant_predictions_give_zero_matthews_without_a_warning(right: int, constant: int, f1: float):
    labels, predictions = np.array([1] * right + [0] * (4 - right)), np.full(4, constant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(["matthews", "f1"], labels, predictions)
    assert found == {"matthews": 0.0, "f1": pytest.approx(f1)}


def measured_by(config) -> set[str]:
    """The metrics that a task measures on a few made-up examples."""
    if config.form == "spans":
        return {"exact_match", "f1"} if config.answerable else set(UNANSWERABLE_METRICS)
    if config.form == "generation":
        return {*ROUGE_NAMES, *TranslationConfig.metrics}
    if config.form == "tags":
        return set(config.measure([TaggedSentence("1", ("a",), ("O",))], [["O"]]))
    if config.form == "instructions":
        return set(config.measure((), losses=1.0, tokens=1, written=None))
    if config.form == "choices":
        example = Choices("1", (("a", "b"), ("a", "c")), 0, accepted=(0,), answers=("b", "c"))
        return set(config.measure([example], np.eye(2)[:1]))
    groups = getattr(config, "groups", ("",))
    examples = [Example("1", "a", None, label, group) for group in groups for label in (0, 1)]
    return set(config.measure(examples, np.eye(2)[[0, 1] * len(groups)]))


@pytest.mark.parametrize("kind", TASKS)
def test_tasks_only_name_metrics_that_they_measure(kind):
    config = TASKS[kind].without_files({"kind": kind, "split": "dev"})
    assert set(config.metrics) <= measured_by(config)


def test_correlations_equal_scipy_and_are_zero_for_constants():
    labels, predictions = RANDOM.normal(size=(2, 50))
    found = measure(["pearson", "spearman"], labels, predictions)
    assert found["pearson"] == pytest.approx(np.corrcoef(labels, predictions)[0, 1])
    first, second = (np.argsort(np.argsort(side)) for side in (labels, predictions))
    assert found["spearman"] == pytest.approx(np.corrcoef(first, second)[0, 1])
    # Ranks 1.5, 1.5, 3, 4 against 1, 2, 3, 4: 1 - 6 * 0.5 / (4 * 15) is the formula without ties, 0.95.
    found = measure(["spearman"], np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 5.0, 9.0]))
    assert found["spearman"] == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure(["pearson", "spearman"], labels, np.ones(50)) == {"pearson": 0, "spearman": 0}
        assert measure(["pearson"], labels[:1], labels[:1]) == {"pearson": 0}
        for number in (np.nan, np.inf):
            broken = np.append(predictions[1:], number)
            assert measure(["pearson", "spearman"], labels, broken) == {"pearson": 0, "spearman": 0}
        assert abs(measure(["pearson"], labels, 1 + 1e-14 * predictions)["pearson"]) <= 1


# The leaderboard's entry of BERT-large (Devlin et al. 2019): 80.5 over nine tasks.
BERT_LARGE = {
    "cola": {"matthews": 60.5, "accuracy": 0.0},
    "sst2": {"accuracy": 94.9},
    "mrpc": {"f1": 89.3, "accuracy": 85.4},
    "stsb": {"pearson": 87.6, "spearman": 86.5},
    "qqp": {"f1": 72.1, "accuracy": 89.3},
    "mnli": {"accuracy_matched": 86.7, "accuracy_mismatched": 85.9, "diagnostic_matthews": 39.6},
    "qnli": {"accuracy": 92.7},
    "rte": {"accuracy": 70.1},
    "wnli": {"accuracy": 65.1},
}


def test_average_over_glue_is_what_the_leaderboard_says_and_there_is_none_over_a_part():
    assert glue_average(BERT_LARGE) == pytest.approx(80.5, abs=0.05)
    assert glue_average({task: found for task, found in BERT_LARGE.items() if task != "rte"}) is None
    assert glue_average(BERT_LARGE | {"qqp": {"f1": 72.1}}) is None


def test_average_over_glue_names_metrics_that_the_tasks_have():
    for kind, metrics in GLUE_METRICS.items():
        assert set(metrics) <= set(TASKS[kind].metrics)
