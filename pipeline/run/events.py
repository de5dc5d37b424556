"""The kinds of events in a run's history, as `events.jsonl` has them."""

from __future__ import annotations

from enum import StrEnum


class Event(StrEnum):
    """One kind of event; values are on disk, and never change."""

    LAUNCHED = "launched"
    """A driver began to see to the run."""
    STARTED = "started"
    """The workers of an attempt are ready to train."""
    FINISHED = "finished"
    """The run made its last update and saved it."""
    PREEMPTED = "preempted"
    """The run was asked to stop, and saved."""
    MOVED = "moved"
    """The run saved, and its group starts again: on other nodes, or with more workers."""
    FAILED = "failed"
    """The attempt ended with an error."""
    LOST = "lost"
    """The processes of the attempt ended without recording why."""
    RECONFIGURED = "reconfigured"
    """The configuration was replaced; `before` names the file of the one before."""
    CHANGED = "changed"
    """A resumption was allowed to differ from its checkpoint; `differences` says how."""
    SPIKE = "spike"
    """The run was rolled back after a loss spike."""
    SKIPPED_UPDATE = "skipped-update"
    """An update was skipped, because the loss or a gradient was not finite."""
    ROLLED_BACK = "rolled-back"
    """An operator took the run back to an earlier checkpoint; later ones were renamed."""
    PUBLISHED = "published"
    """A checkpoint became a version of a registered model; retention keeps it."""
    RETRACKED = "retracked"
    """The run has another MLflow run, or another tracking store, than before."""
    CHECKPOINT_SET_ASIDE = "checkpoint-set-aside"
    """A damaged checkpoint was renamed."""
    CHECKPOINT_FAILED = "checkpoint-failed"
    """A checkpoint could not be written."""
    RETENTION_FAILED = "retention-failed"
    """Old checkpoints could not be deleted."""
    STALLED = "stalled"
    """A worker gave no sign of life for too long."""
    KILLED = "killed"
    """The driver killed a stalled worker."""
    KILL_FAILED = "kill-failed"
    LEFTOVER_KILLED = "leftover-killed"
    """A worker of an earlier start was killed."""
    WORKERS_LOST = "workers-lost"
    """Workers died, and the group is started again where restarts are left."""
    RESTARTS_RENEWED = "restarts-renewed"
    """The run made progress since its restarts were counted; they are counted again."""
    STRAGGLER = "straggler"
    """Workers are slower than the group."""
    PROFILED = "profiled"
    PROFILE_FAILED = "profile-failed"
    TRACKING_BEHIND = "tracking-behind"
    """The tracking store did not take the whole log."""
    INDEX_DAMAGED = "index-damaged"
    """A cached index of an epoch was not what was written, and is made again."""
    INDEX_NOT_CACHED = "index-not-cached"
    """The index of an epoch could not be cached."""


TROUBLES = frozenset(Event) - {
    *(Event.LAUNCHED, Event.STARTED, Event.FINISHED, Event.RECONFIGURED, Event.CHANGED),
    *(Event.RESTARTS_RENEWED, Event.PROFILED, Event.ROLLED_BACK),
    *(Event.PUBLISHED, Event.RETRACKED),
}
"""Kinds that an operator may want to know of at once."""
