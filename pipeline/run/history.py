"""The past of a run: its attempts, the settings, code and workers of each, what it read and what was logged.

An attempt begins with a `started` event, from the newest checkpoint, and ends with the process. Updates after the
checkpoint that an earlier attempt had made are made again; the run consists of the latest ones.

A configuration that another version of cloze wrote may not validate any more; its run is shown all the same, from
`StoredSettings`.
"""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.credentials import has_credentials, without_credentials
from cluster.artefacts.manifest import created_by
from cluster.artefacts.storage import contents_of
from pipeline.run.directory import CONFIG_FILE, RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind, entries_backwards
from pipeline.samples.batch_plan import UNBOUNDED_STEPS, TokenPlan
from pipeline.terms import TOTAL, deciding_metric

_PACKAGES = ("torch", "deepspeed", "ray", "mlflow", "numpy", "numba", "tokenizers", "triton", "flash-attn")
_STEERING_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "DS_")
"""Prefixes of environment variables that change results or speed; none of them holds a secret."""


def source_tags() -> dict[str, str]:
    """The code that made a run: cloze's version and commit (`+dirty` when it was changed), under MLflow's names too.

    The commit is cloze's own, not the user's working directory's: with the resolved configuration and the fingerprints
    of the data, it determines the run.
    """
    made = created_by()
    tags = {
        "mlflow.source.name": "cloze",
        "mlflow.source.type": "LOCAL",
        "cloze.version": made.version,
        "cloze.host": made.host,
    }
    with suppress(OSError, KeyError):  # In a container, the user may have no name.
        tags["mlflow.user"] = getpass.getuser()
    if made.commit:
        tags |= {"mlflow.source.git.commit": made.commit, "cloze.commit": made.commit}
    return tags


def changed_packages(run: RunDirectory) -> list[str]:
    """In words, the packages that have another version here than in the last attempt at a run: results may round
    otherwise from here on."""
    started = run.events(Event.STARTED)
    if not started:
        return []
    with contents_of(run.history):
        versions = [
            {"python": own["python"], **own["packages"]}
            for own in (started[-1]["environment"], environment())
        ]
    return [
        f"{name} was {versions[0].get(name, 'not installed')}, is {versions[1].get(name, 'not installed')}"
        for name in sorted(versions[0].keys() | versions[1].keys())
        if versions[0].get(name) != versions[1].get(name)
    ]


def environment() -> dict[str, Any]:
    """Versions of the packages that compute a run, the machine, and the environment variables that steer them."""
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": versions,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_STEERING_VARIABLES)
        },
    }


def without_secrets(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings as a tracking store may have them: all of its users see them."""
    if has_credentials(text := orjson.dumps(dict(config), default=str).decode()):
        return orjson.loads(without_credentials(text))
    return config


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """A stored configuration."""

    plain: Mapping[str, Any]
    """The contents of the YAML file."""
    token_plan: TokenPlan
    checkpoint_directory: str | None
    """The place of checkpoints; None for the run's directory."""
    stores: tuple[Mapping[str, Any], ...]
    """The token stores, each with its `path`."""

    @classmethod
    def of(cls, run: RunDirectory, name: str = CONFIG_FILE) -> StoredSettings:
        """The configuration in a file of the run.

        Raises:
            CorruptArtefactError: it is not what was written, or lacks settings that every version has.
        """
        plain = run.settings(name)
        with contents_of(run.path / name):
            return cls(
                plain=plain,
                token_plan=TokenPlan.of(plain),
                checkpoint_directory=(plain.get("checkpoint") or {}).get("directory"),
                stores=tuple(plain["data"]["stores"]),
            )

    @property
    def num_steps(self) -> int | None:
        """Updates of the whole run; None where only its time ends it."""
        steps = self.token_plan.num_steps
        return steps if steps < UNBOUNDED_STEPS else None

    @property
    def metric(self) -> str:
        """The metric that decides which of two evaluations is better; `loss` for an objective of another version."""
        if chosen := (self.plain.get("evaluation") or {}).get("metric"):
            return chosen
        try:
            objective = _objectives().validate_python(self.plain.get("objective"))
        except ValidationError:
            return TOTAL
        return deciding_metric(objective.terms())


@cache
def _objectives() -> TypeAdapter[Any]:
    from pipeline.objectives import ObjectiveChoice

    return TypeAdapter(ObjectiveChoice)


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
        # An event that lacks a field, or has another type in it, counts as a torn line: the history has no checksum.
        with suppress(KeyError, TypeError, ValueError):
            if event["event"] == Event.RECONFIGURED:
                config_file = str(event["before"])
            elif event["event"] == Event.STARTED:
                found.append(Attempt(0, int(event["step"]), int(event["world_size"]), config_file, event))
    return [replace(own, number=number) for number, own in enumerate(reversed(found), start=1)]


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
    with contents_of(run.history):
        return {int(event["step"]) for event in run.events(Event.PUBLISHED)}
