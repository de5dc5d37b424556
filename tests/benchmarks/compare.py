"""Timing two ways of doing the same thing, in turn, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of one benchmark."""

    what: str
    peer: str
    unit: str
    ours: float
    """Median, in units per second."""
    theirs: float
    """Median, in units per second."""
    ratio: float
    """Median of the ratios of neighbouring runs, ours / theirs."""

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.ours:,.0f} {self.unit}/s, {self.peer} {self.theirs:,.0f} {self.unit}/s,"
            f" ratio {self.ratio:.2f}"
        )


def compare(
    what: str,
    peer: str,
    unit: str,
    units: float,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = 7,
    warm_up: bool = True,
) -> Comparison:
    """Run both once to warm up, then `rounds` times in turn; `units` is what one call does.

    A call that returns a float has measured itself: those are its seconds.
    """
    if warm_up:
        ours(), theirs()
    pairs = [(units / _seconds(ours), units / _seconds(theirs)) for _ in range(rounds)]
    return Comparison(
        what=what,
        peer=peer,
        unit=unit,
        ours=statistics.median(pair[0] for pair in pairs),
        theirs=statistics.median(pair[1] for pair in pairs),
        ratio=statistics.median(a / b for a, b in pairs),
    )


def peer_name(package: str, what: str = "") -> str:
    """`transformers 5.23.0 Trainer`: a package with the version that is measured."""
    return f"{package} {version(package)} {what}".strip()


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    measured = work()
    return measured if isinstance(measured, float) else time.perf_counter() - started
