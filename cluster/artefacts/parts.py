"""Artefacts made of parts: made, continued after a crash, adopted from an artefact that is replaced, or repaired.

A part is one file or several, and a pure function of what its identity hashes. Its record is written after its files,
so a record always describes finished files, and only a part without a good record is made again. The caller makes the
parts, between `PartedArtefact.prepare` and `conclude`: in Ray tasks, or in the processes of a training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from cluster.artefacts.manifest import MANIFEST_NAME, FileEntry, InputEntry, Manifest, read_manifest
from cluster.artefacts.reading import for_files
from cluster.artefacts.seals import read_sealed, write_sealed
from cluster.artefacts.signatures import is_sealing, require_key
from cluster.artefacts.storage import (
    Damage,
    commit,
    difference,
    find_damage,
    is_committed,
    quarantine,
    staging_directory,
    storage_errors,
)

TEMPORARY = ".*.tmp"
"""Pattern of the names that files have while they are written."""
SHOWN_CHANGES = 5
"""Different settings that a refusal names."""


class PartRecord(BaseModel):
    """The durable note that a part is finished. Subclasses add fields, and implement both properties."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    """Hash of everything that determined the part's files: input bytes, settings; no paths."""

    @property
    def part_name(self) -> str:
        """Name of the part."""
        raise NotImplementedError

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        """Entries of the part's files."""
        raise NotImplementedError

    def renamed(self, name: str) -> Self | None:
        """The record if the part had another name; None where that is not possible."""
        return None

    def slim(self) -> Self:
        """The record as it is kept in memory, maybe with a hundred thousand others."""
        return self


Record = TypeVar("Record", bound=PartRecord)


@dataclass(frozen=True, slots=True)
class PartRecords(Generic[Record]):
    """The records of one kind of part: `DIRECTORY/PART.json` in the artefact, each with a checksum."""

    directory_name: str
    model: type[Record]

    def path(self, artefact: Path, part_name: str) -> Path:
        """Path of the record of a part."""
        return artefact / self.directory_name / f"{part_name}.json"

    def read(self, artefact: Path, part_name: str, *, anyone: bool = False) -> Record | None:
        """The readable record of a part, whatever its identity; `anyone` as for `read_all`."""
        # Paths would take as long to make as records to read.
        record = self._read(f"{artefact}/{self.directory_name}/{part_name}.json", anyone=anyone)
        return record if record is not None and record.part_name == part_name else None

    def read_all(self, artefact: Path, *, anyone: bool = False) -> list[Record]:
        """Every readable record of an artefact, sorted by file name.

        Args:
            anyone: whether they need not be signed where signatures are asked for.
        """
        paths = sorted((artefact / self.directory_name).glob("*.json"))
        records = [self._read(path, anyone=anyone) for path in paths]
        return [record for record in records if record is not None]

    def write(self, artefact: Path, record: Record) -> None:
        """Note durably that the files of a part lie finished in `artefact`."""
        path = self.path(artefact, record.part_name)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, record.model_dump(mode="json"), signed=True)

    def finished(self, artefact: Path, parts: Mapping[str, str]) -> dict[str, Record]:
        """Slim records, by part name, of the parts whose files have the recorded hashes.

        Args:
            parts: identities by part name.
        """

        def verified(part: tuple[str, str]) -> Record | None:
            record = self.made(artefact, *part)
            try:
                if record is not None and all(
                    not difference(entry.under(artefact), entry) and (entry.sha256 or not is_sealing())
                    for entry in record.part_files
                ):
                    return record.slim()
            except (OSError, CorruptArtefactError):
                pass
            return None

        return {
            record.part_name: record for record in for_files(verified, [*parts.items()]) if record is not None
        }

    def made(self, artefact: Path, part_name: str, identity: str) -> Record | None:
        """The record of a part, whatever became of its files since; None if the part was not made in `artefact`."""
        record = self.read(artefact, part_name)
        return record if record is not None and record.identity == identity else None

    def find_damage(self, artefact: Path, part_names: Iterable[str]) -> list[Damage]:
        """The records that are missing or damaged; none where the artefact never had records."""
        if not (artefact / self.directory_name).is_dir():
            return []
        names = list(part_names)
        records = for_files(lambda name: self.read(artefact, name, anyone=True), names)
        lost = [
            self.path(artefact, name) for name, record in zip(names, records, strict=True) if record is None
        ]
        return [
            Damage(
                path.relative_to(artefact).as_posix(),
                "its checksum does not fit" if path.exists() else "is missing",
            )
            for path in lost
        ]

    def open(self, artefact: Path) -> None:
        """Make the directories of the artefact and of its records; remove files that a killed run left half-written."""
        (artefact / self.directory_name).mkdir(parents=True, exist_ok=True)
        for leftover in (*artefact.glob(TEMPORARY), *(artefact / self.directory_name).glob(TEMPORARY)):
            leftover.unlink(missing_ok=True)

    def adopt(self, source: Path, target: Path, parts: Mapping[str, str]) -> int:
        """Link into `target` the parts that were made in `source` with the same identity, under whatever name.

        Parts that have a record in `target` already are left alone. No hash is checked here: `finished` does that.

        Returns:
            The number of adopted parts.
        """
        by_identity = {record.identity: record for record in self.read_all(source)}
        self.open(target)
        num_adopted = 0
        for name, identity in parts.items():
            old = self.made(source, name, identity) or by_identity.get(identity)
            if old is None or self.made(target, name, identity):
                continue
            new = old if old.part_name == name else old.renamed(name)
            if new is not None and _link_files(source, old, target, new):
                self.write(target, new)
                num_adopted += 1
        return num_adopted

    def _read(self, path: str | Path, *, anyone: bool) -> Record | None:
        try:
            return self.model.model_validate(read_sealed(path, signed=not anyone))
        except (OSError, ValueError):
            return None


@dataclass
class PartedArtefact(Generic[Record]):
    """An artefact that consists of parts: `inspect`, and unless it is intact, `prepare`, make parts, `conclude`."""

    directory: Path
    kind: str
    key: str
    """Hash of everything that determines the artefact, kept in the manifest as `build_key`."""
    config: Mapping[str, Any]
    """Settings that determine the content besides the inputs; no paths."""
    inputs: Sequence[InputEntry]
    parts: Mapping[str, str]
    """Identities of the parts by name, which is unique, and safe in file names."""
    records: PartRecords[Record]
    records_are_content: bool = True
    """Whether the records say something that the files do not, so that a part with a lost record is made again."""
    place_setting: str = "out"
    """The setting that chooses `directory`, for messages."""
    committed: Manifest | None = field(default=None, init=False)
    """The manifest that `inspect` found."""
    is_same: bool = field(default=False, init=False)
    """Whether it was made from the same inputs and settings, so that it is repaired in place and not replaced."""
    damages: Sequence[Damage] = field(default=(), init=False)
    """Files to be made again, where it is the same; or the manifest alone, where the parts become work in progress."""

    @property
    def workspace(self) -> Path:
        """Directory in which parts are made: a damaged artefact itself, or the staging directory of a new one."""
        return self.directory if self.is_same else staging_directory(self.directory, self.key)

    def inspect(self, *, replace: bool) -> Manifest | None:
        """Verify the artefact, and decide what has to be done; changes nothing on disk.

        Args:
            replace: allow a committed artefact of other inputs or settings to be replaced.

        Returns:
            The manifest of an intact artefact, with which nothing is to be done.

        Raises:
            ConfigError: a committed artefact of other inputs or settings is in the way, and `replace` is False.
            CorruptArtefactError: so is one whose manifest cannot be read, and which holds none of the parts.
        """
        remedy = f"add --replace to make it anew, or choose another `{self.place_setting}`"
        try:
            manifest = read_manifest(self.directory)
        except CorruptArtefactError as error:
            is_there = self.directory.is_dir() and not self.workspace.exists()
            if is_there and any(self.records.made(self.directory, *part) for part in self.parts.items()):
                self.damages = [Damage(MANIFEST_NAME, error.problem)]
            elif is_committed(self.directory) and not replace:
                raise CorruptArtefactError(
                    error.problem,
                    kept="everything in it; its settings and inputs are not known any more",
                    next_step=remedy,
                ) from None
            return None
        self.committed, self.is_same = manifest, manifest.stats.get("build_key") == self.key
        if self.is_same:
            self.damages = find_damage(self.directory, manifest)
            if self.records_are_content:
                self.damages += self.records.find_damage(self.directory, self.parts)
            return None if self.damages else manifest
        if not replace:
            raise ConfigError(
                f"{self.directory} holds {manifest.kind} made from other inputs or settings:"
                f" {_describe_changes(manifest, self.config, self.inputs)}.",
                kept="the committed artefact is untouched",
                next_step=remedy,
            )
        return None

    def prepare(self) -> Path:
        """Make `workspace` ready; parts that `records.finished` does not find there are to be made.

        A damaged artefact has its damaged files quarantined. A staging directory gets the parts of a killed run, of an
        artefact without its manifest, or of the replaced artefact.
        """
        require_key()
        with storage_errors(self.workspace):
            for damage in self.damages:
                quarantine(self.directory, damage)
            if self.damages and not self.is_same:
                os.replace(self.directory, self.workspace)
            self.records.open(self.workspace)
            if self.committed and not self.is_same:
                self.records.adopt(self.directory, self.workspace, self.parts)
        return self.workspace

    def conclude(self, files: Sequence[FileEntry], stats: Mapping[str, Any]) -> Manifest:
        """Commit the new artefact, or check that a repaired one is again as its manifest says.

        Args:
            files: entries of all files of the artefact: the parts' and others.
            stats: for the manifest of a new artefact.

        Raises:
            CorruptArtefactError: a repaired file differs from the first one.
        """
        if self.committed is None or not self.is_same:
            return commit(
                self.workspace,
                self.directory,
                self.kind,
                config=self.config,
                inputs=self.inputs,
                files=files,
                stats={"build_key": self.key, **stats},
            )
        if remaining := find_damage(self.directory, self.committed):
            listed = "\n".join(f"  {damage}" for damage in remaining)
            raise CorruptArtefactError(
                f"{self.directory} was damaged, and the repaired files differ from the first ones:\n{listed}",
                kept="the damaged files, in its quarantine directory",
                next_step="check that inputs, library versions and the kind of machine are those it was made with; to"
                " make everything anew, move the directory away and run the same command",
            )
        return self.committed


def _link_files(source: Path, old: PartRecord, target: Path, new: PartRecord) -> bool:
    """Link the files of a part; False where one is missing, or where a name leads out of an artefact."""
    try:
        origins = [entry.under(source) for entry in old.part_files]
        places = [entry.under(target) for entry in new.part_files]
    except CorruptArtefactError:
        return False
    if not all(origin.is_file() for origin in origins):
        return False
    for origin, place in zip(origins, places, strict=True):
        place.unlink(missing_ok=True)
        try:
            os.link(origin, place)
        except OSError:  # a file system without hard links
            shutil.copyfile(origin, place)
    return True


def _describe_changes(manifest: Manifest, config: Mapping[str, Any], inputs: Sequence[InputEntry]) -> str:
    """The differences between a committed artefact and the requested one, as a text."""
    changed = list(_differences("", manifest.config, orjson.loads(orjson.dumps(dict(config)))))
    if (more := len(changed) - SHOWN_CHANGES) > 0:
        changed[SHOWN_CHANGES:] = [f"{more} more settings differ"]
    before = {entry.fingerprint for entry in manifest.inputs}
    now = {entry.fingerprint for entry in inputs}
    new = [entry.kind for entry in inputs if entry.fingerprint not in before]
    gone = [entry.kind for entry in manifest.inputs if entry.fingerprint not in now]
    if new or gone:
        changed.append(f"{len(new)} inputs are new and {len(gone)} are gone")
    if new and gone and set(new) != set(gone):
        changed.append(f"made from {', '.join(sorted(set(new)))} instead of {', '.join(sorted(set(gone)))}")
    return "; ".join(changed) or "the split of the work differs"


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """A line for every setting that differs, with its dotted key."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(f"{key}.{name}" if key else str(name), old.get(name), new.get(name))
    elif old != new:
        yield f"{key} was {old!r}, is {new!r}"
