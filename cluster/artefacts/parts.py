"""Artefacts made of parts: made, continued after a crash, adopted from an artefact that is replaced, or repaired.

A part is one file or several, and a pure function of what its identity hashes. Its record is written after its files,
so a record always describes finished files, and only a part without a good record is made again. The caller makes the
parts, between `PartedArtefact.prepare` and `conclude`: in Ray tasks, or in the processes of a training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    read_manifest,
    read_sealed,
    write_sealed,
)
from cluster.artefacts.reading import for_files
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


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of an artefact as it was found, and so what has to be done."""

    committed: Manifest | None = None
    """Its manifest; None where it is to be made."""
    same: bool = False
    """Whether it was made from the same inputs and settings; otherwise it is to be replaced."""
    damages: tuple[Damage, ...] = ()
    """Files to be made again, where it is the same."""
    lost_manifest: Damage | None = None
    """Set where only the manifest is missing or damaged: the parts become work in progress again."""

    @property
    def is_intact(self) -> bool:
        """Whether there is nothing to do."""
        return self.same and not self.damages


@dataclass(frozen=True)
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

    @property
    def staging(self) -> Path:
        """The directory that gathers the parts of a new artefact."""
        return staging_directory(self.directory, self.key)

    def inspect(self, *, replace: bool) -> Condition:
        """Verify the artefact, and decide what has to be done; changes nothing.

        Args:
            replace: allow a committed artefact of other inputs or settings to be replaced.

        Raises:
            ConfigError: a committed artefact of other inputs or settings is in the way, and `replace` is False.
            CorruptArtefactError: so is one whose manifest cannot be read, and which holds none of the parts.
        """
        remedy = f"add --replace to make it anew, or choose another `{self.place_setting}`"
        try:
            manifest = read_manifest(self.directory)
        except CorruptArtefactError as error:
            is_there = self.directory.is_dir() and not self.staging.exists()
            if is_there and any(self.records.made(self.directory, *part) for part in self.parts.items()):
                return Condition(lost_manifest=Damage(MANIFEST_NAME, error.problem))
            if replace or not is_committed(self.directory):
                return Condition()
            raise CorruptArtefactError(
                error.problem,
                kept="everything in it; its settings and inputs are not known any more",
                next_step=remedy,
            ) from None
        if manifest.stats.get("build_key") == self.key:
            damages = find_damage(self.directory, manifest)
            if self.records_are_content:
                damages += self.records.find_damage(self.directory, self.parts)
            return Condition(manifest, same=True, damages=tuple(damages))
        if not replace:
            raise ConfigError(
                f"{self.directory} holds {manifest.kind} made from other inputs or settings:"
                f" {_describe_changes(manifest, self.config, self.inputs)}.",
                kept="the committed artefact is untouched",
                next_step=remedy,
            )
        return Condition(manifest)

    def prepare(self, condition: Condition) -> Path:
        """The directory for the parts; those that `records.finished` does not find there are to be made.

        A damaged artefact is repaired in place, after its damaged files were quarantined. Otherwise the directory is
        `staging`, with the parts of a killed run, of an artefact without its manifest, or of the replaced artefact.

        Raises:
            UntrustedArtefactError: as `require_key`.
        """
        require_key()
        workspace = self.directory if condition.same else self.staging
        with storage_errors(workspace):
            if condition.lost_manifest:
                quarantine(self.directory, condition.lost_manifest)
                os.replace(self.directory, workspace)
            self.records.open(workspace)
            for damage in condition.damages:
                quarantine(workspace, damage)
            if condition.committed and not condition.same:
                self.records.adopt(self.directory, workspace, self.parts)
        return workspace

    def conclude(
        self, condition: Condition, workspace: Path, files: Sequence[FileEntry], stats: Mapping[str, Any]
    ) -> Manifest:
        """Commit the new artefact, or check that a repaired one is again as its manifest says.

        Args:
            files: entries of all files of the artefact: the parts' and others.
            stats: for the manifest of a new artefact.

        Raises:
            CorruptArtefactError: a repaired file differs from the first one.
        """
        if condition.committed is None or not condition.same:
            return commit(
                workspace,
                self.directory,
                self.kind,
                config=self.config,
                inputs=self.inputs,
                files=files,
                stats={"build_key": self.key, **stats},
            )
        if remaining := find_damage(self.directory, condition.committed):
            listed = "\n".join(f"  {damage}" for damage in remaining)
            raise CorruptArtefactError(
                f"{self.directory} was damaged, and the repaired files differ from the first ones:\n{listed}",
                kept="the damaged files, in its quarantine directory",
                next_step="check that inputs, library versions and the kind of machine are those it was made with; to"
                " make everything anew, move the directory away and run the same command",
            )
        return condition.committed


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
