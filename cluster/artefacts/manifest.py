"""The manifest of an artefact: its kind, settings and inputs, and a hash for every file.

The fingerprint answers "is this the same data?" across machines: it hashes everything that determines the content, and
nothing that varies between two correct runs (places, times, hosts, worker counts).
"""

from __future__ import annotations

import hashlib
import operator
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import uuid4

import orjson
import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    field_validator,
)
from pydantic.dataclasses import dataclass

from cluster.artefacts import signatures
from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import CorruptArtefactError, MismatchError
from cluster.artefacts.reading import confined_name, inside, read_bytes, sha256_of
from cluster.artefacts.reading import hash_file as hash_file
from cluster.artefacts.signatures import Signature

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1
_BLOCK_BYTES = 1 << 24
_CHECKSUM = "checksum"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CreatedBy(_Frozen):
    """The program and the machine that made an artefact; never part of the fingerprint."""

    version: str
    commit: str | None
    host: str
    time: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class FileEntry:
    """One file of an artefact. A dataclass, because an artefact may have a hundred thousand."""

    path: Annotated[str, AfterValidator(confined_name)]
    """Relative to the artefact's directory, with forward slashes; never leads out of it."""
    size_bytes: NonNegativeInt
    xxh3_128: str
    rows: int | None = None
    tokens: int | None = None
    sha256: str | None = Field(default=None, exclude_if=operator.not_)
    """In signed manifests only."""

    @classmethod
    def of(cls, file: Path, name: str, *, rows: int | None = None, tokens: int | None = None) -> FileEntry:
        """The entry called `name` of a local file, hashed now."""
        digest, size_bytes = hash_file(file)
        return cls(
            name, size_bytes, digest, rows, tokens, sha256_of(file) if signatures.is_signing() else None
        )

    def difference(self, other: FileEntry) -> str:
        """How another entry of the file differs in size or hash; empty where it does not."""
        if other.size_bytes != self.size_bytes:
            return f"{other.size_bytes} bytes instead of {self.size_bytes}"
        if other.xxh3_128 != self.xxh3_128:
            return f"xxh3_128 is {other.xxh3_128} instead of {self.xxh3_128}"
        if self.sha256 not in (None, other.sha256):
            return f"SHA-256 is {other.sha256} instead of {self.sha256}"
        return ""

    def under(self, directory: Path) -> Path:
        """Path of the file if the artefact is in `directory`.

        Raises:
            CorruptArtefactError: a link leads out of it.
        """
        return inside(directory, self.path)


class HashingWriter:
    """A binary stream that hashes what is written to it, so that files need not be read again for their hash."""

    def __init__(self, stream: BinaryIO, *, sha256: bool) -> None:
        self._stream = stream
        self._digest = xxhash.xxh3_128()
        self._sha256 = hashlib.sha256() if sha256 else None
        self.size_bytes = 0
        self.error: Exception | None = None
        """The error of the stream, if it raised one."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`; returns its size in bytes."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _BLOCK_BYTES):
                block = view[start : start + _BLOCK_BYTES]
                self._stream.write(block)
                self._digest.update(block)
                if self._sha256 is not None:
                    self._sha256.update(block)
        except Exception as error:
            self.error = error
            raise
        self.size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def entry(self, path: str) -> FileEntry:
        """The manifest's entry of the bytes written."""
        sha256 = None if self._sha256 is None else self._sha256.hexdigest()
        digest = self._digest.hexdigest()
        return FileEntry(path=path, size_bytes=self.size_bytes, xxh3_128=digest, sha256=sha256)


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class InputEntry:
    """An input of an artefact, which may have a million."""

    kind: Annotated[str, AfterValidator(sys.intern)]
    """`source-file`, or the kind of the artefact."""
    uri: Annotated[str, AfterValidator(without_credentials)]
    """Its place, without credentials; for people and lineage, never part of the fingerprint."""
    fingerprint: str


class Manifest(_Frozen):
    """The contents of `manifest.json`, written last into an artefact."""

    kind: str
    schema_version: int = SCHEMA_VERSION
    config: dict[str, Any]
    """Settings that determined the content besides the inputs; no paths."""
    inputs: tuple[InputEntry, ...]
    files: tuple[FileEntry, ...]
    stats: dict[str, Any]
    created_by: CreatedBy
    fingerprint: str
    signature: Signature | None = Field(default=None, exclude_if=operator.not_)
    """Signature of all the above; None in an unsigned manifest."""

    @field_validator("kind")
    @classmethod
    def _kind_is_printable(cls, kind: str) -> str:
        if not kind.isprintable():
            raise ValueError("it has characters that are not printable")
        return kind

    @field_validator("files")
    @classmethod
    def _names_are_distinct(cls, files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
        names = {entry.path for entry in files}
        if len(names) < len(files) or MANIFEST_NAME in names:
            raise ValueError(f"it names a file twice, or {MANIFEST_NAME} itself")
        return files


def hash_json(value: Any) -> str:
    """xxh3_128 hex digest of the canonical JSON (sorted keys) of `value`."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value))


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def seal(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum to the contents of a JSON file, so that damage is noticed that leaves it readable."""
    return {**contents, _CHECKSUM: hash_json(dict(contents))}


def unseal(sealed: Any) -> dict[str, Any]:
    """Check and remove the checksum of `seal`.

    Raises:
        ValueError: there is no checksum, or it does not fit the contents.
    """
    if not isinstance(sealed, dict):
        raise ValueError("it is not a JSON object")
    contents = {key: value for key, value in sealed.items() if key != _CHECKSUM}
    if (found := hash_json(contents)) != (stated := sealed.get(_CHECKSUM)):
        raise ValueError(f"it was altered: it states checksum {stated}, its contents give {found}")
    return contents


def fingerprint_of(
    kind: str, config: Mapping[str, Any], inputs: Sequence[InputEntry], files: Sequence[FileEntry]
) -> str:
    """Hash of kind, config, input fingerprints (in order) and file hashes; see the module's docstring."""
    return hash_json(
        {
            "kind": kind,
            "schema_version": SCHEMA_VERSION,
            "config": dict(config),
            "inputs": [[entry.kind, entry.fingerprint] for entry in inputs],
            "files": [[entry.path, entry.xxh3_128] for entry in files],
        }
    )


def make_manifest(
    kind: str,
    *,
    config: Mapping[str, Any],
    inputs: Sequence[InputEntry],
    files: Sequence[FileEntry],
    stats: Mapping[str, Any],
) -> Manifest:
    """Build a manifest with its fingerprint. `config` must be JSON-serialisable and hold no paths."""
    ordered = tuple(sorted(files, key=lambda entry: entry.path))
    return Manifest(
        kind=kind,
        config=dict(config),
        inputs=tuple(inputs),
        files=ordered,
        stats=dict(stats),
        created_by=created_by(),
        fingerprint=fingerprint_of(kind, config, inputs, ordered),
    )


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Write `manifest.json` durably: temporary name, fsync, rename. Returns the manifest, signed where this process
    signs."""
    found = signed(manifest, lambda entry: sha256_of(entry.under(directory)))
    write_durably(directory / MANIFEST_NAME, manifest_bytes(found))
    return found


def signed(manifest: Manifest, digest: Callable[[FileEntry], str]) -> Manifest:
    """The manifest with a signature, and the SHA-256 of every file; unchanged where this process does not sign.

    Args:
        digest: the SHA-256 of a file whose entry has none.
    """
    if not signatures.is_signing():
        return manifest
    files = [entry if entry.sha256 else replace(entry, sha256=digest(entry)) for entry in manifest.files]
    unsigned = manifest.model_copy(update={"files": tuple(files), "signature": None})
    return unsigned.model_copy(update={"signature": signatures.sign(signed_bytes(unsigned))})


def signed_bytes(manifest: Manifest) -> bytes:
    """The bytes that a signature is of: canonical JSON of everything but the signature."""
    return canonical_json(manifest.model_copy(update={"signature": None}).model_dump(mode="json"))


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step that survives a crash: readers see the old bytes or the new."""
    with replaced(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replaced(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary name beside `path`; the file that is written there takes its place when the block ends well.

    Args:
        durable: have it on the disk first.
    """
    # Of its own on every machine: a process elsewhere may still work on the file of a task that was given up.
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        # What is left of it would become a file of the artefact at the next attempt.
        temporary.unlink(missing_ok=True)


def read_manifest(directory: Path, *, anyone: bool = False) -> Manifest:
    """Read the manifest of a committed artefact.

    Args:
        anyone: whether it need not be signed where signatures are asked for.

    Raises:
        CorruptArtefactError: the manifest is missing or unreadable, or its checksum or fingerprint does not fit its
            contents.
        MismatchError: it was written by a newer cloze.
        StorageError: it may not be read, or is no regular file.
        UntrustedArtefactError: signatures are asked for, and it has no good one.
    """
    path = directory / MANIFEST_NAME
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptArtefactError(
            f"{directory} is not a committed artefact: it has no {MANIFEST_NAME}.",
            next_step="run the command that makes it again; it continues from what is finished",
        ) from None
    return parse_manifest(data, str(path), anyone=anyone)


def parse_manifest(data: bytes, place: str, *, anyone: bool = False) -> Manifest:
    """Parse and check the contents of a manifest's file.

    Args:
        place: the file's path or URI, for error messages.
        anyone: as for `read_manifest`.
    """
    try:
        contents = unseal(orjson.loads(data))
    except ValueError as error:
        raise CorruptArtefactError(f"{place} cannot be read: {error}") from None
    found = contents.get("schema_version")
    if isinstance(found, int) and found > SCHEMA_VERSION:
        raise MismatchError(
            f"{place} has schema version {found}; this cloze reads up to {SCHEMA_VERSION}.",
            next_step="upgrade cloze",
        )
    try:
        manifest = Manifest.model_validate(contents)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptArtefactError(f"{place} is not a manifest: {where}: {first['msg']}") from None
    expected = fingerprint_of(manifest.kind, manifest.config, manifest.inputs, manifest.files)
    if manifest.fingerprint != expected:
        raise CorruptArtefactError(
            f"{place} was altered: it states fingerprint {manifest.fingerprint}, its contents give {expected}."
        )
    if signatures.is_trusting() and not anyone:
        signatures.require_trusted(place, signed_bytes(manifest), manifest.signature)
    if manifest.signature is not None and not all(entry.sha256 for entry in manifest.files):
        raise CorruptArtefactError(f"{place} is signed, but has no SHA-256 of some files.")
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """The contents of `manifest.json`, with a checksum."""
    return orjson.dumps(seal(manifest.model_dump(mode="json")), option=orjson.OPT_INDENT_2)


@cache
def cloze_version() -> str:
    """The installed version of cloze."""
    try:
        return version("cloze")
    except PackageNotFoundError:
        return "0+unknown"


@cache
def _source_commit() -> str | None:
    """The commit of the running source tree, with `+dirty` when it was changed; None outside a clone."""
    root = str(Path(__file__).resolve().parents[2])
    command = ["git", "-C", root, "describe", "--always", "--dirty=+dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def created_by() -> CreatedBy:
    """Version, commit, host and time of this process."""
    return CreatedBy(
        version=cloze_version(),
        commit=_source_commit(),
        host=platform.node(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
