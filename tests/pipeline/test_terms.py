"""Every term of a loss is reported by itself, and one named metric tells the better of two evaluations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cluster.artefacts.errors import ConfigError
from pipeline.checkpoint.checkpoint import Counters, TrainerState
from pipeline.objectives import ObjectiveChoice
from pipeline.terms import Term, deciding_metric, with_perplexities
from tests.pipeline.ranks import make_config
from tests.pipeline.small_checkpoints import state_at

NOT_LIKELIHOODS = {"nsp", "sop", "rtd", "soft", "cosine"}


def terms_of(**objective: Any) -> dict[str, Term]:
    settings: Any = TypeAdapter(ObjectiveChoice).validate_python(objective)
    return dict(settings.terms())


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ({"kind": "mlm"}, "loss"),
        ({"kind": "mlm", "pairs": "nsp"}, "mlm/loss"),
        ({"kind": "mlm", "pairs": "sop"}, "mlm/loss"),
        ({"kind": "span"}, "mlm/loss"),
        ({"kind": "span", "boundary": False}, "loss"),
        ({"kind": "rtd"}, "rtd/loss"),
        ({"kind": "distill", "teacher": "t"}, "mlm/loss"),
        ({"kind": "clm"}, "loss"),
        ({"kind": "t5_span_corruption"}, "loss"),
        ({"kind": "bilm"}, "loss"),
    ],
    ids=str,
)
def test_every_objective_says_which_metric_decides_and_which_terms_are_language_models(
    objective: dict[str, Any], metric: str
):
    terms = terms_of(**objective)
    assert deciding_metric(terms) == metric
    assert {name for name, term in terms.items() if not term.is_likelihood} == NOT_LIKELIHOODS & terms.keys()


def test_perplexity_is_of_each_language_models_own_mean():
    found = with_perplexities({"loss": 52.0, "mlm/loss": 2.0, "rtd/loss": 1.0}, terms_of(kind="rtd"))
    assert found == {"loss": 52.0, "mlm/loss": 2.0, "rtd/loss": 1.0, "mlm/perplexity": math.exp(2.0)}
    found = with_perplexities({"clm/loss": 1e4}, {"clm": Term(is_likelihood=True)})
    assert found["clm/perplexity"] == math.inf


def test_an_unknown_metric_is_refused_with_those_that_are_measured(tmp_path: Path):
    with pytest.raises(ConfigError, match="mlm/perplexity, rtd/loss, rtd/accuracy"):
        make_config(tmp_path, tmp_path, "evaluation.metric=rtd/perplexity", objective="{kind: rtd}")
    chosen = make_config(tmp_path, tmp_path, "evaluation.metric=rtd/accuracy", objective="{kind: rtd}")
    assert chosen.metric == "rtd/accuracy"


def restored(counters: Counters, metric: str) -> Counters:
    """As a resumed run has it: out of the checkpoint's JSON."""
    names = ("held_out", "best", "evaluations_since_best")
    state = state_at(7, metric=metric, **{name: getattr(counters, name) for name in names})
    read = TrainerState.model_validate(orjson.loads(orjson.dumps(state.model_dump(mode="json"))))
    return read.counters(metric)


@given(
    values=st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.25, 0.5, 0.75]), max_size=8),
    killed=st.integers(0, 8),
    metric=st.sampled_from(["loss", "mlm/accuracy"]),
)
@example(values=[math.nan, 0.5, 0.75], killed=1, metric="loss")
def test_evaluations_without_numbers_are_never_best_and_a_resumed_run_counts_them_alike(
    values: list[float], killed: int, metric: str
):
    whole, resumed = Counters.at_start(), Counters.at_start()
    for number, value in enumerate(values):
        if number == killed:
            resumed = restored(resumed, metric)
        for counters in (whole, resumed):
            counters.add_evaluation({metric: value, "lr": 1.0}, metric, 0.0)
    for name in ("held_out", "best", "evaluations_since_best"):
        assert getattr(whole, name) == getattr(resumed, name)
    finite = [value for value in values if math.isfinite(value)]
    best = max if metric.endswith("accuracy") else min
    assert whole.best == (best(finite) if finite else None)
    behind = len(values) - 1 - values.index(best(finite)) if finite else len(values)
    assert whole.evaluations_since_best == behind
