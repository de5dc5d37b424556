"""Ways of doing the same thing, timed in turn, so that a noisy machine disturbs all alike."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

_VARYING = re.compile(r" \(.*?\)| \d+(?:\.\d+)+[^ ,]*")
"""What changes from run to run in the names of a comparison: remarks in parentheses, and versions."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speeds of one way and of a peer, measured in turn."""

    what: str
    peer: str
    unit: str
    ours: float
    """Median, in units per second."""
    theirs: float
    """Median, in units per second."""
    rounds: tuple[float, ...]
    """Ratios of neighbouring runs, ours / theirs, in order."""

    @property
    def key(self) -> str:
        """The name of the comparison, the same with other versions of a peer."""
        return _VARYING.sub("", f"{self.what} | {self.peer}")

    @property
    def ratio(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        spread = f" ({min(self.rounds):.2f} to {max(self.rounds):.2f})" if len(self.rounds) > 1 else ""
        return (
            f"{self.what}: {self.ours:,.0f} {self.unit}/s, {self.peer} {self.theirs:,.0f} {self.unit}/s,"
            f" ratio {self.ratio:.2f}{spread}"
        )


def line_of(benchmark: str, outcome: object) -> dict[str, Any]:
    """An outcome as plain data: the figures of a comparison, or only the text that is printed."""
    line: dict[str, Any] = {"benchmark": benchmark, "text": str(outcome)}
    if isinstance(outcome, Comparison):
        line |= asdict(outcome) | {"key": outcome.key, "ratio": outcome.ratio, "unit": f"{outcome.unit}/s"}
    return line


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
    speeds: dict[str, list[float]] = {name: [] for name in (*ours, *theirs)}
    for _ in range(rounds):
        for name, work in {**ours, **theirs}.items():
            started = time.perf_counter()
            measured = work()
            seconds = measured if isinstance(measured, float) else time.perf_counter() - started
            speeds[name].append(units / seconds)
    median = {name: statistics.median(own) for name, own in speeds.items()}
    return [
        Comparison(
            what,
            peer,
            unit,
            median[what],
            median[peer],
            tuple(one / other for one, other in zip(speeds[what], speeds[peer], strict=True)),
        )
        for what in ours
        for peer in theirs
    ]


def in_process(module: str, function: str, *arguments: str, **environment: str) -> Callable[[], float | None]:
    """A call of a function in a process of its own: of the seconds that the function returns, or None."""
    code = f"from {module} import {function}; print({function}(*{arguments!r}))"

    def call() -> float | None:
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{function} failed:\n{done.stderr[-3000:]}")
        found = done.stdout.splitlines()[-1]
        return None if found == "None" else float(found)

    return call


def steps_of_hugging_face(
    model: Any, data: Any, collator: Any, directory: str, clock: Callable[[], float], **arguments: Any
) -> list[float]:
    """Times at which Hugging Face's Trainer ended its updates, on the processor."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(clock())

    ends: list[float] = []
    arguments |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    settings = TrainingArguments(output_dir=directory, **arguments)
    Trainer(model, settings, train_dataset=data, data_collator=collator, callbacks=[Clock()]).train()
    return ends


def processor_seconds(work: Callable[[], object], calls: int = 1) -> float:
    """Seconds that a call takes of this process's processor, the mean of some."""
    started = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - started) / calls


def peer_name(package: str, what: str = "") -> str:
    """`transformers 5.23.0 Trainer`: a package with the version that is measured."""
    return f"{package} {version(package)} {what}".strip()
