"""Timing two ways of doing the same thing, in turn, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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
    rounds: tuple[float, ...] = ()
    """Those ratios, in order."""

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.ours:,.0f} {self.unit}/s, {self.peer} {self.theirs:,.0f} {self.unit}/s,"
            f" ratio {self.ratio:.2f}" + self._spread()
        )

    def _spread(self) -> str:
        return f" ({min(self.rounds):.2f} to {max(self.rounds):.2f})" if len(self.rounds) > 1 else ""


@dataclass(frozen=True, slots=True)
class Share:
    """The outcome of a benchmark that counts instead of timing."""

    what: str
    ours: float
    """Between 0 and 1."""
    theirs: Mapping[str, float]
    """Of the other ways, by their names."""

    def __str__(self) -> str:
        others = ", ".join(f"{name} {share:.1%}" for name, share in self.theirs.items())
        return f"{self.what}: {self.ours:.2%}, {others}"


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
    (result,) = compare_all({what: ours}, {peer: theirs}, unit, units, rounds)
    return result


def compare_all(
    ours: Mapping[str, Callable[[], object]],
    theirs: Mapping[str, Callable[[], object]],
    unit: str,
    units: float,
    rounds: int,
) -> list[Comparison]:
    """Every way of ours against every peer, all of them once in every round, without warming up."""
    runs = [
        {name: units / _seconds(work) for name, work in ({**ours, **theirs}).items()} for _ in range(rounds)
    ]
    return [_compared(what, peer, unit, runs) for what in ours for peer in theirs]


def _compared(what: str, peer: str, unit: str, runs: list[dict[str, float]]) -> Comparison:
    ratios = tuple(run[what] / run[peer] for run in runs)
    return Comparison(
        what=what,
        peer=peer,
        unit=unit,
        ours=statistics.median(run[what] for run in runs),
        theirs=statistics.median(run[peer] for run in runs),
        ratio=statistics.median(ratios),
        rounds=ratios,
    )


def peer_name(package: str, what: str = "") -> str:
    """`transformers 5.23.0 Trainer`: a package with the version that is measured."""
    return f"{package} {version(package)} {what}".strip()


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    measured = work()
    return measured if isinstance(measured, float) else time.perf_counter() - started
