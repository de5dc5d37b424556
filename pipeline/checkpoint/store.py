"""The checkpoints of a run: finding its store, the newest and the best checkpoint, and retention."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    CorruptCheckpointError,
    StorageError,
)
from cluster.artefacts.places import Place, absolute, as_place
from cluster.artefacts.private import cache_directory
from cluster.artefacts.remote import Remote
from pipeline.checkpoint.checkpoint import DESCRIPTION_FILES, TrainerState, read_trainer_state
from pipeline.checkpoint.disk_store import CheckpointStore
from pipeline.checkpoint.object_store import ObjectStore
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings
from pipeline.terms import higher_is_better

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig


def store_of(run: RunDirectory, config: PretrainConfig | None = None) -> CheckpointStore:
    """The checkpoints of a run, where its configuration keeps them; None reads it from the run's directory."""
    place = StoredSettings.of(run).checkpoint_directory if config is None else config.checkpoint.directory
    return CheckpointStore(run.checkpoints) if place is None else open_store(place, run.info.name)


def newest_state(run: RunDirectory) -> TrainerState | None:
    """The state in the newest checkpoint that can be read; None when there is none."""
    try:
        store = store_of(run)
        steps = store.steps()
    except (ClozeError, OSError):
        return None
    for step in reversed(steps):
        with suppress(ClozeError, OSError, ValueError):
            return read_trainer_state(store.fetch(step, DESCRIPTION_FILES))
    return None


def open_store(place: Place | str, name: str) -> CheckpointStore:
    """The checkpoints of the run `name` below a directory or an fsspec URI.

    Raises:
        MissingInputError: there is no such kind of store, or its library is not installed.
    """
    place = absolute(as_place(place)) / name
    if isinstance(place, Path):
        return CheckpointStore(place)
    remote = Remote.open(place)
    key = xxhash.xxh3_64_hexdigest(remote.uri.encode())
    return ObjectStore(cache_directory() / "checkpoints" / key, remote)


def newest_good(
    store: CheckpointStore, *, look_only: bool = False, files: Collection[str] | None = None
) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, on this machine, and a message for each damaged one, which is set aside.

    Args:
        look_only: leave damaged checkpoints where they are.
        files: only these files of it are needed, and hashed; of the others the sizes are compared.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies.
    """
    messages: list[str] = []
    for step in sorted({*store.steps(), *store.lost()}, reverse=True):
        try:
            return store.fetch(step, files), messages
        except CorruptArtefactError as error:
            place = store.place(step) if look_only else store.set_aside(step)
            messages.append(f"{error.problem}\nIt lies at {place}.")
    if messages:
        raise CorruptCheckpointError(
            "No checkpoint of this run verifies:\n" + "\n".join(messages),
            kept="the damaged checkpoints, renamed to *.corrupt, and the run's log",
            next_step="restore one of them from a backup, or start the run again with `cloze pretrain`",
        )
    return None, messages


def best_step(store: CheckpointStore, until: int | None = None) -> int | None:
    """The checkpoint that was best by the metric that the newest one names, the earlier one of equals; None when none
    was evaluated.

    Args:
        until: the last step that counts; None for all.
    """
    found: list[tuple[int, str, dict[str, float]]] = []
    steps = [step for step in store.steps() if until is None or step <= until]
    for step in steps:
        # Skip unreadable checkpoints. Only the newest can have been rewritten since the last call: a step is saved
        # again after a rollback, which removes later ones.
        with suppress(CorruptArtefactError, CorruptCheckpointError):
            found.append((step, *store.evaluated(step, again=step == steps[-1])))
    if not found:
        return None
    metric = found[-1][1]
    values = [(own[metric], step) for step, _, own in found if metric in own]
    sign = -1 if higher_is_better(metric) else 1
    return min((sign * value, step) for value, step in values)[1] if values else None


def apply_retention(
    store: CheckpointStore,
    keep_last: int,
    keep_every_steps: int | None = None,
    pinned: Callable[[], Collection[int]] = tuple,
) -> list[int]:
    """Delete all checkpoints but the best one and those that are to be kept; returns the deleted steps.

    Args:
        keep_last: so many of the newest are kept.
        keep_every_steps: all whose step is a multiple of this are kept.
        pinned: gives the steps that others use; it is asked last, right before the deletion.

    Raises:
        StorageError: some could not be deleted; all others were. The next call tries again.
    """
    steps = store.steps()
    kept = {*steps[-keep_last:], best_step(store)}
    kept |= set(pinned())
    if keep_every_steps:
        kept |= {step for step in steps if step % keep_every_steps == 0}
    deleted = [step for step in steps if step not in kept]
    problems = []
    for step in deleted:
        try:
            store.delete(step)
        except (OSError, StorageError) as error:
            problems.append(f"{error.problem if isinstance(error, StorageError) else error}")
    if problems:
        raise StorageError(
            f"{len(problems)} of {len(deleted)} old checkpoints could not be deleted: {problems[0]}",
            kept="the new checkpoint",
            next_step="nothing: it is tried again after the next save",
        )
    return deleted
