"""The checkpoints of a run: in a directory that all ranks share, or in an object store with a local copy.

Both are a directory of `step-*` subdirectories. With an object store, files are uploaded when they are written, and
downloaded and hashed when they are needed, into the bounded cache of this machine; copies are deleted with the store's
own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    CorruptCheckpointError,
    StorageError,
)
from cluster.artefacts.manifest import MANIFEST_NAME, Manifest, read_manifest
from cluster.artefacts.private import cache_directory
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import (
    Damage,
    damaged,
    find_damage,
    free_name,
    is_committed,
    open_artefact,
    remove_tree,
    storage_errors,
)
from cluster.copies import copy_directory, drop_copies, local_copy
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
from pipeline.checkpoint.staging import Staging, wrong_sizes
from pipeline.objectives.base import higher_is_better
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The checkpoints of one run. Unpublished ones are never listed or read."""

    directory: Path
    """Holds the checkpoints; with a `remote`, files on their way to it."""
    remote: Remote | None = None
    _evaluated: dict[int, tuple[str, dict[str, float]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """By step, what `evaluated` read."""

    @property
    def copies(self) -> bool:
        """Whether `fetch` copies files to this machine; if not, all machines read the same files."""
        return self.remote is not None

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending; their bytes are not checked."""
        if self.remote is None:
            return [step_of(path) for path in list_checkpoints(self.directory)]
        found = (int(match[1]) for name in self.remote.names() if (match := CHECKPOINT_NAME.match(name)))
        manifests = {_manifest_name(step): step for step in found}
        return sorted(manifests[name] for name in self.remote.existing([*manifests]))

    def lost(self) -> list[int]:
        """Steps of checkpoints that lost their manifest, ascending. None with a remote, where the manifest is written
        last: a directory without one is a save that still runs."""
        if self.remote is not None:
            return []
        found = [path for path in self.directory.glob("step-*") if CHECKPOINT_NAME.search(path.name)]
        return sorted(step_of(path) for path in found if path.is_dir() and not is_committed(path))

    def place(self, step: int) -> str:
        """Path or URI of a checkpoint, for people and for tracking."""
        name = checkpoint_name(step)
        return str(self.local(step).resolve()) if self.remote is None else self.remote.place(name)

    def local(self, step: int) -> Path:
        """The path of a checkpoint, or of its copy, on this machine; nothing is read."""
        name = checkpoint_name(step)
        return self.directory / name if self.remote is None else copy_directory(self.remote.place(name))

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            CorruptArtefactError: it is missing or damaged.
            CorruptCheckpointError: it is of another step than its directory's name says.
        """
        if self.remote is None:
            manifest = read_manifest(self.local(step))
        else:
            try:
                manifest = self.remote.manifest(checkpoint_name(step))[1]
            except FileNotFoundError:
                raise CorruptArtefactError(
                    f"{self.place(step)} is no checkpoint: it has no {MANIFEST_NAME}."
                ) from None
        if manifest.kind != KIND:
            raise CorruptArtefactError(f"{self.place(step)} holds {manifest.kind}, but {KIND} is needed.")
        if (own := manifest.config.get("step")) != step:
            raise CorruptCheckpointError(
                f"{self.place(step)} is a checkpoint of step {own}, whatever its name says.",
                kept="everything in it",
                next_step="find out who put it there, and delete it, or give it the name of its step",
            )
        return manifest

    def evaluated(self, step: int, *, again: bool = False) -> tuple[str, dict[str, float]]:
        """The deciding metric of a checkpoint, and what was measured, by name. Read once: a save compares its
        checkpoint with all before it.

        Args:
            again: read it once more, because the step may have been saved anew.

        Raises:
            CorruptArtefactError: the manifest is missing or damaged.
        """
        if again or step not in self._evaluated:
            self._evaluated[step] = evaluated(self.manifest(step).stats)
        return self._evaluated[step]

    def damage(self, step: int, manifest: Manifest, *, deep: bool) -> list[Damage]:
        """Files of a checkpoint that differ from its manifest in size, or when `deep` in their hash. `deep` reads
        everything of a remote checkpoint through the network, and keeps nothing."""
        if self.remote is None:
            directory = self.local(step)
            return [*find_damage(directory, manifest, deep=deep), *unlisted(directory, manifest)]
        name = checkpoint_name(step)
        found = wrong_sizes(manifest, self.remote.sizes(name))
        if deep:
            known = {damage.path for damage in found}
            rest = [entry for entry in manifest.files if entry.path not in known]
            found += [damage for damage in self.remote.below(name).download(rest, None) if damage is not None]
        return found

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        """A local directory that holds a checkpoint, or the named ones of its files, with the hashes of its manifest.

        Raises:
            CorruptArtefactError: names every file that is missing or damaged. Of the files that are not named, only
                the sizes are compared.
            CorruptCheckpointError: its directory is named for another step than its manifest.
            StorageError: there is no room for the copy.
        """
        manifest = self.manifest(step)
        if self.remote is None:
            return open_checkpoint(self.local(step), files)
        drop_copies(self.remote.uri, [self.place(one) for one in self.steps()])
        if damages := self.damage(step, manifest, deep=False):
            raise damaged(self.place(step), manifest, damages)
        return local_copy(self.place(step), only=files, one_place=True)

    def delete(self, step: int) -> None:
        """Delete a checkpoint; a deletion that is killed leaves no checkpoint. A link is removed, not its target.

        Raises:
            StorageError: some of it could not be deleted.
        """
        if self.remote is not None:
            self.remote.remove_directory(checkpoint_name(step), MANIFEST_NAME)
            return
        path = self.local(step)
        # Renamed first: half a checkpoint must never look like one.
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.deleted")
        with suppress(FileNotFoundError), storage_errors(path):
            os.replace(path, doomed)
        # Together with what could not be deleted before, such as files that another machine still had open.
        errors = list(self._sweep(".step-*.deleted"))
        if errors:
            raise StorageError(
                f"Cannot delete all files of {path}, which is not listed any more: {errors[0]}"
            )

    def set_aside(self, step: int, why: str = "corrupt") -> str:
        """Rename a checkpoint to `step-*.WHY`, so that it is not listed; returns its new place."""
        if self.remote is None:
            place = self.local(step)
            return str(place.rename(free_name(place.with_name(f"{place.name}.{why}"))))
        name, number = checkpoint_name(step), 0
        target = f"{name}.{why}"
        while self.remote.exists(target):
            number += 1
            target = f"{name}.{why}.{number}"
        self.remote.copy(name, target)
        self.delete(step)
        return self.remote.place(target)

    def staging(self, step: int, key: str) -> Staging:
        """The staging of a checkpoint; `key` distinguishes this save from all others of the step."""
        name = checkpoint_name(step)
        return Staging(self.directory / f".{name}.{key}.partial", self.directory / name, key, self.remote)

    def make_room(self, step: int) -> None:
        """On rank 0, before any rank writes: invalidate an existing checkpoint of this step. On a disk the rename that
        commits replaces it."""
        if self.remote is not None:
            self.remote.remove([_manifest_name(step)])

    def clean(self) -> None:
        """Delete the remains of killed saves and deletions. Only while no save is running."""
        for pattern in (".step-*.partial", ".step-*.deleted", ".step-*.replaced*"):
            list(self._sweep(pattern))
        if self.remote is not None:
            committed = {checkpoint_name(step) for step in self.steps()}
            for name in self.remote.names():
                if CHECKPOINT_NAME.match(name) and name not in committed:
                    self.remote.remove_directory(name, MANIFEST_NAME)

    def _sweep(self, pattern: str) -> Iterator[OSError]:
        """Delete the directories that match a pattern; yields the errors of those that could not be deleted."""
        for leftover in self.directory.glob(pattern):
            try:
                remove_tree(leftover)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield error


def _manifest_name(step: int) -> str:
    return f"{checkpoint_name(step)}/{MANIFEST_NAME}"


def open_checkpoint(directory: Path, files: Collection[str] | None = None) -> Path:
    """Verify a checkpoint's directory, or the named ones of its files, and return it.

    Raises:
        CorruptArtefactError: names every file that is missing, damaged, or not in the manifest.
    """
    manifest = open_artefact(directory, kind=KIND, only=files)
    if foreign := unlisted(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in foreign)
        raise CorruptArtefactError(f"{directory} ({KIND}) holds files of unknown origin:\n{listed}")
    return directory


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


def open_store(place: str, name: str) -> CheckpointStore:
    """The checkpoints of the run `name` below a directory or an fsspec URI.

    Raises:
        MissingInputError: there is no such kind of store, or its library is not installed.
    """
    scheme, separator, rest = place.partition("://")
    if not separator or scheme == "file":
        return CheckpointStore(Path(rest if separator else place).expanduser() / name)
    remote = Remote.open(f"{place.rstrip('/')}/{name}")
    key = xxhash.xxh3_64_hexdigest(remote.uri.encode())
    return CheckpointStore(cache_directory() / "checkpoints" / key, remote)


@dataclass(frozen=True, slots=True)
class Retention:
    """Checkpoints to keep besides the best one."""

    keep_last: int
    """So many of the newest."""
    keep_every_steps: int | None = None
    """All whose step is a multiple of this."""
    pinned: Callable[[], Collection[int]] = tuple
    """Steps that others use; asked before every deletion."""


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
        # What cannot be read is not the best. Only the newest may have been saved anew since the last call: saving a
        # step again takes a rollback, which removes those after it.
        with suppress(CorruptArtefactError, CorruptCheckpointError):
            found.append((step, *store.evaluated(step, again=step == steps[-1])))
    if not found:
        return None
    metric = found[-1][1]
    values = [(own[metric], step) for step, _, own in found if metric in own]
    sign = -1 if higher_is_better(metric) else 1
    return min((sign * value, step) for value, step in values)[1] if values else None


def apply_retention(store: CheckpointStore, retention: Retention) -> list[int]:
    """Delete what retention does not keep; returns the deleted steps.

    Raises:
        StorageError: some could not be deleted; all others were. The next call tries again.
    """
    steps = store.steps()
    kept = {*steps[-retention.keep_last :], best_step(store), *retention.pinned()}
    if every := retention.keep_every_steps:
        kept |= {step for step in steps if step % every == 0}
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
