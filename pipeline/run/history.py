"""The past of a run: its attempts, the configuration and the workers of each, what it read and what was logged.

An attempt begins with a `started` event, from the newest checkpoint, and ends with the process. Updates after the
checkpoint that an earlier attempt had made are made again; the run consists of the latest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.run.directory import CONFIG_FILE, RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import entries_backwards
from pipeline.run.stored_settings import StoredSettings
from pipeline.run.token_plan import TokenPlan


@dataclass(frozen=True, slots=True)
class Attempt:
    """One group of workers at the run, from its start to its end."""

    number: int
    """1 is the first."""
    first_step: int
    """Updates that were made when it began."""
    world_size: int
    config_file: str
    """The configuration in force, by its name in the run's directory."""
    event: Mapping[str, Any]
    """The `started` event as it was recorded: time, optimizer, device, workers."""

    @property
    def time(self) -> str:
        """When it began; UTC, ISO 8601."""
        return str(self.event.get("time", ""))


def list_attempts(events: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """The attempts of a run, oldest first.

    Args:
        events: the run's history, oldest first.
    """
    found: list[Attempt] = []
    config_file = CONFIG_FILE
    # A reconfiguration names the file of the configuration that was in force until then: read from the end.
    for event in reversed(events):
        if event["event"] == Event.RECONFIGURED:
            config_file = str(event["before"])
        elif event["event"] == Event.STARTED:
            found.append(Attempt(0, int(event["step"]), int(event["world_size"]), config_file, event))
    return [
        Attempt(number, own.first_step, own.world_size, own.config_file, own.event)
        for number, own in enumerate(reversed(found), start=1)
    ]


def tokens_by_step(run: RunDirectory, settings: StoredSettings | None = None) -> Callable[[int], int]:
    """A function from a step to the tokens of text that the run has read until then. An attempt with other settings
    replaces everything after its start.

    Args:
        settings: those in force, where they were read already.
    """
    plans = {} if settings is None else {CONFIG_FILE: settings.token_plan}

    def plan_of(name: str) -> TokenPlan:
        if name not in plans:
            plans[name] = StoredSettings.of(run, name).token_plan
        return plans[name]

    stretches: list[tuple[int, TokenPlan]] = []
    for attempt in list_attempts(run.events()):
        # A run begins at 0, although the line of its history that says so may have been torn.
        first = attempt.first_step if stretches else 0
        stretches = [one for one in stretches if one[0] < first]
        stretches.append((first, plan_of(attempt.config_file)))
    stretches = stretches or [(0, plan_of(CONFIG_FILE))]

    def tokens(step: int) -> int:
        ends = [min(step, first) for first, _ in stretches[1:]] + [step]
        return sum(
            plan.tokens_before(end) - plan.tokens_before(first)
            for (first, plan), end in zip(stretches, ends, strict=True)
            if end > first
        )

    return tokens


def attempts_at(attempts: Sequence[Attempt], step: int) -> list[Attempt]:
    """The attempts that began before a step and may have made it, oldest first; the last of them counts."""
    return [attempt for attempt in attempts if attempt.first_step < step]


def logged(run: RunDirectory, step: int) -> dict[str, Any] | None:
    """The logged metrics of a step; None before it was made."""
    for entry in entries_backwards(run, b'"step":%d,' % step):
        if entry["kind"] == LogKind.STEP and entry["step"] == step:
            return entry["data"]
    return None


def last_logged(run: RunDirectory, kind: LogKind = LogKind.STEP) -> tuple[int, dict[str, Any]] | None:
    """The step and the data of the newest entry of a kind; None without any."""
    for entry in entries_backwards(run, b'"%s"' % kind.value.encode()):
        if entry["kind"] == kind:
            return entry["step"], entry["data"]
    return None


def logged_checkpoints(run: RunDirectory) -> tuple[int, set[int]]:
    """Steps of the newest checkpoint in the log (-1 without any), and of all checkpoints that exist by the log."""
    forgotten: set[int] = set()
    for entry in entries_backwards(run):
        if entry["kind"] == LogKind.FORGET:
            forgotten.update(entry["data"]["steps"])
        elif entry["kind"] == LogKind.CHECKPOINT:
            return entry["step"], set(entry["data"].get("kept", ())) - forgotten
    return -1, set()


def published_steps(run: RunDirectory) -> set[int]:
    """Steps of the checkpoints that were published under a model's name."""
    return {int(event["step"]) for event in run.events(Event.PUBLISHED)}
