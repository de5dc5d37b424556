"""How metrics are shown: shares in percent, and the few metrics that are no shares, as they are."""

from __future__ import annotations

LOWER_IS_BETTER = frozenset({"loss", "perplexity"})
"""Metrics that are no shares of 1; none is the main one of a task."""


def shown(metric: str, value: float) -> str:
    """The value of a metric, such as `56.3`: a share in percent, a loss in nats."""
    return f"{value:.4g}" if metric in LOWER_IS_BETTER else f"{100 * value:.1f}"
