"""The checkpoints of a run, in a directory that all ranks share or in an object store: which there are, the newest and
the best one, and retention."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, compress, count
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    CorruptCheckpointError,
    StorageError,
)
from cluster.artefacts.manifest import MANIFEST_NAME, Manifest
from cluster.artefacts.places import Place, Uri, absolute, as_place
from cluster.artefacts.private import cache_directory
from cluster.artefacts.reading import for_files
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import (
    Damage,
    damaged,
    find_damage,
    free_name,
    is_committed,
    remove_tree,
    storage_errors,
)
from cluster.copies import damage_at, is_there, local_copy, manifest_at
from pipeline.checkpoint.checkpoint import (
    CHECKPOINT_NAME,
    DESCRIPTION_FILES,
    KIND,
    TrainerState,
    checkpoint_name,
    evaluated,
    list_checkpoints,
    read_trainer_state,
    step_of,
    unlisted,
)
from pipeline.checkpoint.staging import Staging
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings
from pipeline.terms import higher_is_better

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run. Unpublished ones are never listed or read."""

    directory: Place
    """Holds the checkpoints."""
    _evaluated: dict[int, tuple[str, dict[str, float]]] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )
    """By step, the result of `evaluated`."""

    def at(self, step: int) -> Place:
        """The place of a checkpoint."""
        return self.directory / checkpoint_name(step)

    def place(self, step: int) -> str:
        """Path or URI of a checkpoint, for people and for tracking."""
        return str(absolute(self.at(step)))

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending; their bytes are not checked."""
        if isinstance(self.directory, Path):
            return [step_of(path) for path in list_checkpoints(self.directory)]
        names = Remote.open(self.directory).names()
        found = sorted(int(match[1]) for name in names if (match := CHECKPOINT_NAME.match(name)))
        return [*compress(found, for_files(lambda step: is_there(self.at(step)), found))]

    def lost(self) -> list[int]:
        """Steps of checkpoints that lost their manifest, ascending. In an object store, where the manifest is written
        last, one without it is a save that still runs."""
        if isinstance(self.directory, Uri):
            return []
        found = [path for path in self.directory.glob("step-*") if CHECKPOINT_NAME.search(path.name)]
        return sorted(step_of(path) for path in found if path.is_dir() and not is_committed(path))

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint; raises as `checkpoint_manifest`."""
        return checkpoint_manifest(self.at(step), step)

    def evaluated(self, step: int, *, again: bool = False) -> tuple[str, dict[str, float]]:
        """The deciding metric and all measured metrics by name; cached, because every save compares them.

        Args:
            again: do not use the cache, because the step may have been saved again.

        Raises:
            CorruptArtefactError: the manifest is missing or damaged.
        """
        if again or step not in self._evaluated:
            self._evaluated[step] = evaluated(self.manifest(step).stats)
        return self._evaluated[step]

    def damage(self, step: int, manifest: Manifest, *, deep: bool) -> list[Damage]:
        """Files of a checkpoint that differ from its manifest in size, or when `deep` in their hash."""
        place = self.at(step)
        foreign = unlisted(place, manifest) if isinstance(place, Path) else []
        return [*damage_at(place, manifest, deep=deep), *foreign]

    def fetch(self, step: int, files: Collection[str] | None = None, *, deep: bool = True) -> Path:
        """A verified directory with the checkpoint of a step, as `fetch_checkpoint`."""
        return fetch_checkpoint(self.at(step), step, files, deep=deep)

    def delete(self, step: int) -> None:
        """Delete a checkpoint; a deletion that is killed leaves no checkpoint. A link is removed, not its target.

        Raises:
            StorageError: some of it could not be deleted.
        """
        path = self.at(step)
        if isinstance(path, Uri):
            return Remote.open(path).remove_all()
        # Renamed first: half a checkpoint must never look like one.
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.deleted")
        with suppress(FileNotFoundError), storage_errors(path):
            os.replace(path, doomed)
        # Together with what could not be deleted before, such as files that another machine still had open.
        errors = list(_sweep(path.parent, ".step-*.deleted"))
        if errors:
            raise StorageError(
                f"Cannot delete all files of {path}, which is not listed any more: {errors[0]}"
            )

    def set_aside(self, step: int, why: str = "corrupt") -> str:
        """Rename a checkpoint to `step-*.WHY`, so that it is not listed; returns its new place."""
        place, name = self.at(step), f"{checkpoint_name(step)}.{why}"
        if isinstance(place, Path):
            return str(place.rename(free_name(place.with_name(name))))
        taken = Remote.open(place.parent).names()
        names = chain([name], (f"{name}.{number}" for number in count(1)))
        target = place.parent / next(one for one in names if one not in taken)
        Remote.open(place).copy(target)
        self.delete(step)
        return target

    def staging(self, step: int, key: str) -> Staging:
        """The staging area of a checkpoint; `key` distinguishes this save from all others of the step."""
        return Staging(self._scratch / f".{checkpoint_name(step)}.{key}.partial", self.at(step))

    def make_room(self, step: int) -> None:
        """On rank 0, before any rank writes: invalidate an existing checkpoint of this step in an object store; on a
        disk, the commit replaces it by a rename."""
        if isinstance(place := self.at(step), Uri):
            Remote.open(place).remove([MANIFEST_NAME])

    def clean(self) -> None:
        """Delete the remains of killed saves and deletions. Only while no save is running."""
        for pattern in (".step-*.partial", ".step-*.deleted", ".step-*.replaced*"):
            list(_sweep(self._scratch, pattern))
        if isinstance(self.directory, Uri):
            committed = {checkpoint_name(step) for step in self.steps()}
            for name in Remote.open(self.directory).names():
                if CHECKPOINT_NAME.match(name) and name not in committed:
                    Remote.open(self.directory / name).remove_all()

    @property
    def _scratch(self) -> Path:
        """Directory on this machine for files that are being written."""
        if isinstance(self.directory, Path):
            return self.directory
        return cache_directory() / "checkpoints" / xxhash.xxh3_64_hexdigest(self.directory.encode())


def _sweep(directory: Path, pattern: str) -> Iterator[OSError]:
    """Delete the directories that match a pattern; yields the errors of those that could not be deleted."""
    for leftover in directory.glob(pattern):
        try:
            remove_tree(leftover)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield error


def checkpoint_manifest(place: Place, step: int) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        CorruptArtefactError: it is missing or damaged.
        CorruptCheckpointError: it is of another step.
    """
    manifest = manifest_at(place)
    if manifest is None:
        raise CorruptArtefactError(f"{place} is no checkpoint: it has no {MANIFEST_NAME}.")
    if manifest.kind != KIND:
        raise CorruptArtefactError(f"{place} holds {manifest.kind}, but {KIND} is needed.")
    if (own := manifest.config.get("step")) != step:
        raise CorruptCheckpointError(
            f"{place} is a checkpoint of step {own}, whatever its name says.",
            kept="everything in it",
            next_step="find out who put it there, and delete it, or give it the name of its step",
        )
    return manifest


def fetch_checkpoint(
    place: Place, step: int, files: Collection[str] | None = None, *, deep: bool = True
) -> Path:
    """A local directory that holds a checkpoint, or the named ones of its files, with the hashes of its manifest.

    Args:
        deep: hash the files; otherwise only sizes are compared.

    Raises:
        CorruptArtefactError: names every file that is missing, damaged, or not in the manifest. Of the files that are
            not named, only the sizes are compared.
        CorruptCheckpointError: the checkpoint is of another step.
        StorageError: there is no room for the copy.
    """
    manifest = checkpoint_manifest(place, step)
    if isinstance(place, Path):
        damages = [*find_damage(place, manifest, deep=deep, only=files), *unlisted(place, manifest)]
    else:
        damages = damage_at(place, manifest, deep=False)
    if damages:
        raise damaged(place, manifest, damages)
    return place if isinstance(place, Path) else local_copy(place, only=files, verify=deep)


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
    if isinstance(place, Uri):
        Remote.open(place)
    return CheckpointStore(place)


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
