"""The terms of a loss, and the metrics of an evaluation that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TOTAL = "loss"
"""The metric of the weighted sum."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term; its value is the mean over its predictions."""

    weight: float = 1.0
    """Its factor in the weighted sum."""
    is_likelihood: bool = False
    """Whether it is the loss of a language model: the negative log likelihood of tokens in nats, whose exponential is a
    perplexity."""
    has_accuracy: bool = True
    """Whether the network counts right predictions of it."""
    decides: bool = False
    """Whether it decides which of two checkpoints is better; if no term does, or all do, the weighted sum decides."""


def metric_names(terms: Mapping[str, Term]) -> Iterator[str]:
    """The metrics of an evaluation, without those by source."""
    yield TOTAL
    for name, term in terms.items():
        yield f"{name}/loss"
        if term.has_accuracy:
            yield f"{name}/accuracy"
        if term.is_likelihood:
            yield f"{name}/perplexity"


def deciding_metric(terms: Mapping[str, Term]) -> str:
    """The metric that decides which of two checkpoints is better, unless the configuration names another."""
    deciding = [name for name, term in terms.items() if term.decides]
    return f"{deciding[0]}/loss" if len(deciding) == 1 < len(terms) else TOTAL


def with_perplexities(metrics: Mapping[str, float], terms: Mapping[str, Term]) -> dict[str, float]:
    """The metrics, and `TERM/perplexity` of every language model's term, by the mean of that term alone."""
    found = dict(metrics)
    for name, term in terms.items():
        if term.is_likelihood:
            loss = metrics[f"{name}/loss"]
            # Infinite where it exceeds float64.
            found[f"{name}/perplexity"] = math.exp(loss) if not loss >= 700 else math.inf
    return found


def is_better(metric: str, value: float, best: float, by: float = 0.0) -> bool:
    """Whether a value is better than the best one, and by more than `by`: a higher accuracy, a lower anything else."""
    return value > best + by if higher_is_better(metric) else value < best - by


def higher_is_better(metric: str) -> bool:
    """Whether a metric grows as a network learns."""
    return metric.endswith("/accuracy")
