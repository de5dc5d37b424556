"""The kinds of lines in a run's log, as `log.jsonl` has them."""

from __future__ import annotations

from enum import StrEnum

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
    """How long a checkpoint took, and its size."""
    CHECKPOINT = "checkpoint"
    """A committed checkpoint."""
    FORGET = "forget"
    """Checkpoints that are not there any more."""
    ROLLED_BACK = Event.ROLLED_BACK.value
    """The run goes on from this line's step: entries of later steps before it count no more."""
    SPIKE = Event.SPIKE.value
    SKIPPED_UPDATE = Event.SKIPPED_UPDATE.value
