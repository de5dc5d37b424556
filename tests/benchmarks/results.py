"""What a run of the benchmarks found, and with what."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any

import psutil
from cpuinfo import get_cpu_info

from tests.benchmarks.compare import Comparison

_VARYING = re.compile(r" \(.*?\)| \d+(?:\.\d+)+[^ ,]*")
"""What changes from run to run in the names of a comparison: remarks in parentheses, and versions."""


@dataclass(frozen=True, slots=True)
class Results:
    """A run of some or all benchmarks."""

    began: str
    """UTC, ISO 8601."""
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    """Of every installed package."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What each benchmark took by the clock."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Outcomes as `line_of` makes them."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Exit codes of benchmarks that broke off."""

    def ratios(self) -> dict[str, Mapping[str, Any]]:
        """Comparisons by their keys."""
        return {line["key"]: line for line in self.lines if "ratio" in line}


def key_of(comparison: Comparison) -> str:
    """The name of a comparison, the same with other versions of a peer."""
    return _VARYING.sub("", f"{comparison.what} | {comparison.peer}")


def line_of(benchmark: str, outcome: object) -> dict[str, Any]:
    """An outcome as plain data: figures of a comparison, or only the text that is printed."""
    line: dict[str, Any] = {"benchmark": benchmark, "text": str(outcome)}
    if isinstance(outcome, Comparison):
        rounds = outcome.rounds or (outcome.ratio,)
        line |= {
            "key": key_of(outcome),
            "what": outcome.what,
            "peer": outcome.peer,
            "unit": f"{outcome.unit}/s",
            "ours": outcome.ours,
            "theirs": outcome.theirs,
            "ratio": outcome.ratio,
            "rounds": list(rounds),
        }
    return line


def machine() -> dict[str, Any]:
    """The machine, as far as speeds depend on it."""
    return {
        "processor": get_cpu_info().get("brand_raw", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Installed packages and their versions, by name."""
    return dict(sorted((one.metadata["Name"], one.version) for one in distributions()))
