"""What a run's directory says of its past: its attempts, the configuration and the workers of each, what was logged.

An attempt begins with a `started` event, with the newest checkpoint, and ends with the process. Updates behind the
checkpoint that an earlier attempt had made are made again; the run stands on the latest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster.artefacts.errors import ClozeError
from pipeline.checkpoints.checkpoint import DESCRIPTION_FILES, TrainerState, read_trainer_state
from pipeline.checkpoints.store import store_of
from pipeline.runs.config import PretrainConfig
from pipeline.runs.directory import CONFIG_FILE, RunDirectory
from pipeline.runs.log.lines import LOG_NAME, decode, entries_backwards
from pipeline.runs.log.log import CHECKPOINT_KIND, FORGET_KIND, STEP_KIND


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
        if event["event"] == "reconfigured":
            config_file = str(event["before"])
        elif event["event"] == "started":
            found.append(Attempt(0, int(event["step"]), int(event["world_size"]), config_file, event))
    return [
        Attempt(number, own.first_step, own.world_size, own.config_file, own.event)
        for number, own in enumerate(reversed(found), start=1)
    ]


def attempts_at(attempts: Sequence[Attempt], step: int) -> list[Attempt]:
    """The attempts that began before a step and may have made it, oldest first; the run stands on the last of them."""
    return [attempt for attempt in attempts if attempt.first_step < step]


def config_of(run: RunDirectory, attempt: Attempt | None, overrides: Sequence[str] = ()) -> PretrainConfig:
    """The configuration of an attempt, or of the attempts to come for None; overrides win over it."""
    name = CONFIG_FILE if attempt is None else attempt.config_file
    return run.config_in(name, overrides)


def logged(run: RunDirectory, step: int) -> dict[str, Any] | None:
    """What the log says of a step; None when it was not made yet."""
    path, wanted = run.path / LOG_NAME, b'"step":%d,' % step
    if not path.exists():
        return None
    with path.open("rb") as stream:
        for line in stream:
            # To parse each line of a long run takes many times as long as to look at its bytes.
            if wanted in line and line.endswith(b"\n"):
                entry = decode(line)
                if entry is not None and entry["kind"] == STEP_KIND and entry["step"] == step:
                    return entry["data"]
    return None


def last_logged(run: RunDirectory, kind: str = STEP_KIND) -> tuple[int, dict[str, Any]] | None:
    """The newest step that the log has an entry of this kind for, and what it says."""
    for entry in entries_backwards(run.path):
        if entry["kind"] == kind:
            return entry["step"], entry["data"]
    return None


def logged_checkpoints(run: RunDirectory) -> tuple[int, set[int]]:
    """The newest checkpoint that the log tells of (-1: none), and all of those that it says are there."""
    forgotten: set[int] = set()
    for entry in entries_backwards(run.path):
        if entry["kind"] == FORGET_KIND:
            forgotten.update(entry["data"]["steps"])
        elif entry["kind"] == CHECKPOINT_KIND:
            return entry["step"], set(entry["data"].get("kept", ())) - forgotten
    return -1, set()


def newest_state(run: RunDirectory) -> TrainerState | None:
    """What the newest checkpoint that can be read says of the run; None when there is none."""
    try:
        store = store_of(run)
        steps = store.steps()
    except (ClozeError, OSError):
        return None
    for step in reversed(steps):
        with suppress(ClozeError, OSError, ValueError):
            return read_trainer_state(store.fetch(step, DESCRIPTION_FILES))
    return None
