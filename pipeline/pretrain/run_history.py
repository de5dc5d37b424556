"""What a run's directory says of its past: its attempts, the configuration and the workers of each, what it left out.

An attempt begins with a `started` event, with the newest checkpoint, and ends with the process. Updates behind the
checkpoint that an earlier attempt had made are made again; the run stands on the latest ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pipeline.config import load_config
from pipeline.pretrain.config import PretrainConfig
from pipeline.pretrain.run_directory import CONFIG_FILE, RunDirectory
from pipeline.pretrain.run_log import LOG_NAME

LEDGER_FILE = "skipped.json"
"""In the run's directory: which global batches were left out after a loss spike, and why."""


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


def config_of(run: RunDirectory, attempt: Attempt | None) -> PretrainConfig:
    """The configuration of an attempt; that of the attempts to come for None."""
    return load_config(PretrainConfig, run.path / (CONFIG_FILE if attempt is None else attempt.config_file))


def left_out(run: RunDirectory) -> list[dict[str, Any]]:
    """The entries of the ledger, in the order in which they were made: `at_update` and `data_step`, from 0, and why."""
    path = run.path / LEDGER_FILE
    return list(orjson.loads(path.read_bytes())["skipped"]) if path.exists() else []


def logged(run: RunDirectory, step: int) -> dict[str, Any] | None:
    """What the log says of a step; None when it was not made yet."""
    return next((data for _, data in _train_entries(run.path / LOG_NAME, step)), None)


def last_logged(run: RunDirectory) -> tuple[int, dict[str, Any]] | None:
    """The newest step of the log with what it says; read from the end, because logs grow to gigabytes."""
    path = run.path / LOG_NAME
    if not path.exists():
        return None
    for line in _lines_from_end(path):
        if b'"kind":"train"' in line:
            entry = orjson.loads(line)
            return entry["step"], entry["data"]
    return None


def _train_entries(path: Path, step: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.exists():
        return
    wanted = b'"step":%d,' % step
    with path.open("rb") as stream:
        for line in stream:
            # Parsing each line of a long run would take a minute; looking at its bytes takes a second.
            if wanted in line and line.endswith(b"\n"):
                entry = orjson.loads(line)
                if entry["kind"] == "train" and entry["step"] == step:
                    yield step, entry["data"]


def _lines_from_end(path: Path, block: int = 1 << 16) -> Iterator[bytes]:
    """The whole lines of a file, last one first."""
    with path.open("rb") as stream:
        position, tail = stream.seek(0, 2), b""
        is_whole = False
        while position > 0:
            size = min(block, position)
            position -= size
            stream.seek(position)
            (*lines,) = (stream.read(size) + tail).split(b"\n")
            tail = lines[0]
            for line in reversed(lines[1:]):
                # Behind the last newline is nothing, or what a killed process left.
                if is_whole and line:
                    yield line
                is_whole = True
        if is_whole and tail:
            yield tail
