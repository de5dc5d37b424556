"""The kinds of lines in a run's log, as `log.jsonl` has them, and the names of their numbers in tracking services."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pipeline.run.events import Event


class LogKind(StrEnum):
    """One kind of line; values are on disk, and never change."""

    STEP = "train"
    """Metrics of a step: every step has exactly one such line, in order."""
    HELD_OUT = "held_out"
    """Metrics of an evaluation."""
    SYSTEM = "system"
    """Processors, memory, disks, network and GPUs of the machines."""
    RANKS = "ranks"
    """Times and memory of the ranks, compared."""
    SAVING = "saving"
    """Duration and size of a save."""
    CHECKPOINT = "checkpoint"
    """A committed checkpoint."""
    FORGET = "forget"
    """Checkpoints that are not there any more."""
    ROLLED_BACK = Event.ROLLED_BACK.value
    """The run goes on from this line's step: entries of later steps before it count no more."""
    SPIKE = Event.SPIKE.value
    SKIPPED_UPDATE = Event.SKIPPED_UPDATE.value


METRIC_PREFIXES = {
    LogKind.STEP: "",
    LogKind.HELD_OUT: "held_out_",
    LogKind.SYSTEM: "system/",
    LogKind.RANKS: "ranks/",
    LogKind.SAVING: "saving/",
}
"""Kinds of entries that are metrics, with what stands before their names in MLflow. `system/` is MLflow's own name for
them: its pages show those apart."""
_NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")


def key_of(name: str) -> str:
    """A name with the characters that tracking services take."""
    return _NOT_IN_A_KEY.sub("_", name)


def numbers_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log entry by their names in tracking services."""
    prefix = METRIC_PREFIXES.get(entry["kind"], f"{entry['kind']}/")
    return {
        key_of(f"{prefix}{name}"): float(value)
        for name, value in entry["data"].items()
        if isinstance(value, int | float)
    }
