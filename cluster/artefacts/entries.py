"""The entries of a manifest: the files of an artefact, and its inputs, maybe millions.

Many strings lie in one block of bytes: each takes its bytes and 8 more, and not the 60 of an object of its own.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, overload

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, model_serializer
from pydantic.dataclasses import dataclass

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.reading import confined_name, inside

Item = TypeVar("Item")

_BOUNDS = 1 << 16
"""Bounds that are turned into objects at a time."""


class Columns(ABC, Sequence[Item]):
    """A sequence whose items are made when they are asked for."""

    __slots__ = ()

    @abstractmethod
    def item(self, place: int) -> Item:
        """The item at a place, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self.item(range(len(self))[index])


class PackedStrings(Columns[str]):
    """A sequence of strings that takes little memory; `data` and `bounds` are laid out like Arrow's large strings."""

    __slots__ = ("bounds", "data")

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.data = bytearray()
        """UTF-8 of all strings, one after the other; names of files may hold other bytes (PEP 383)."""
        self.bounds = array("q", [0])
        """[strings + 1] string `i` is `data[bounds[i] : bounds[i + 1]]`."""
        self.extend(strings)

    @classmethod
    def of_length(cls, length: int, data: bytes) -> PackedStrings:
        """Strings of `length` bytes each, cut from their text."""
        found = cls()
        found.data += data
        found.bounds = array("q", range(0, len(data) + 1, length))
        return found

    def append(self, string: str) -> None:
        """Add a string at the end."""
        self.data += string.encode("utf-8", "surrogateescape")
        self.bounds.append(len(self.data))

    def extend(self, strings: Iterable[str]) -> None:
        """Add strings at the end."""
        for string in strings:
            self.append(string)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def item(self, place: int) -> str:
        """The string at a place."""
        return self.data[self.bounds[place] : self.bounds[place + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _BOUNDS):
            for start, end in pairwise(self.bounds[first : first + _BOUNDS + 1]):
                yield self.data[start:end].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedStrings):
            return self.bounds == other.bounds and self.data == other.data
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class FileEntry:
    """One file of an artefact. A dataclass, because an artefact may have a hundred thousand."""

    path: Annotated[str, AfterValidator(confined_name)]
    """Relative to the artefact's directory, with forward slashes; never leads out of it."""
    size_bytes: NonNegativeInt
    xxh3_128: str
    rows: int | None = None
    tokens: int | None = None
    sha256: str | None = None
    """In signed manifests only."""

    @model_serializer
    def plain(self) -> dict[str, Any]:
        """The entry as JSON-like data; without a SHA-256 where there is none."""
        found = {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "xxh3_128": self.xxh3_128,
            "rows": self.rows,
            "tokens": self.tokens,
        }
        return found if self.sha256 is None else found | {"sha256": self.sha256}

    def under(self, directory: Path) -> Path:
        """Path of the file if the artefact is in `directory`.

        Raises:
            CorruptArtefactError: a link leads out of it.
        """
        return inside(directory, self.path)


class InputEntry(BaseModel):
    """An input of an artefact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """`source-file`, or the kind of the artefact."""
    uri: Annotated[str, AfterValidator(without_credentials)]
    """Its place, without credentials; for people and lineage, never part of the fingerprint."""
    fingerprint: str


class InputEntries(Columns[InputEntry]):
    """Inputs as columns: an object for each would take ten times their text."""

    __slots__ = ("_kinds", "_names", "fingerprints", "uris")

    def __init__(self, entries: Iterable[InputEntry] = ()) -> None:
        self._names: dict[str, int] = {}
        self._kinds = array("I")
        """[inputs] numbers of the kinds in `_names`."""
        self.uris = PackedStrings()
        self.fingerprints = PackedStrings()
        self.extend(entries)

    @classmethod
    def of(cls, entries: Sequence[InputEntry]) -> InputEntries:
        """The inputs as columns, if they are not yet."""
        return entries if isinstance(entries, cls) else cls(entries)

    @classmethod
    def of_one_kind(cls, kind: str, uris: PackedStrings, fingerprints: PackedStrings) -> InputEntries:
        """Inputs of one kind; the columns are shared, not copied."""
        found = cls()
        found._names[kind] = 0
        found._kinds = array("I", bytes(4 * len(uris)))
        found.uris = PackedStrings(map(without_credentials, uris)) if b"://" in uris.data else uris
        found.fingerprints = fingerprints
        return found

    def extend(self, entries: Iterable[InputEntry]) -> None:
        """Add inputs at the end."""
        for entry in entries:
            self._kinds.append(self._names.setdefault(entry.kind, len(self._names)))
            self.uris.append(entry.uri)
            self.fingerprints.append(entry.fingerprint)

    def kinds(self) -> Iterator[str]:
        """The kind of every input."""
        names = list(self._names)
        return (names[number] for number in self._kinds)

    def contents(self) -> Iterator[tuple[str, str]]:
        """Kind and fingerprint of every input, which fingerprints are made of."""
        return zip(self.kinds(), self.fingerprints, strict=True)

    def plain(self) -> Iterator[dict[str, str]]:
        """Every input as JSON-like data."""
        for kind, uri, fingerprint in zip(self.kinds(), self.uris, self.fingerprints, strict=True):
            yield {"kind": kind, "uri": uri, "fingerprint": fingerprint}

    def __len__(self) -> int:
        return len(self._kinds)

    def item(self, place: int) -> InputEntry:
        """The input at a place."""
        kind = list(self._names)[self._kinds[place]]
        # The entries were checked when they came in.
        return InputEntry.model_construct(
            kind=kind, uri=self.uris[place], fingerprint=self.fingerprints[place]
        )

    def __iter__(self) -> Iterator[InputEntry]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(map(operator.eq, self, other))
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"InputEntries({list(self[:3])}{', ...' if len(self) > 3 else ''})"
