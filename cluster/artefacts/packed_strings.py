"""Many strings in one block of bytes: each takes its bytes and 8 more, and not the 60 of an object of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar, overload

Item = TypeVar("Item")

_BATCH = 1 << 16
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
        for first in range(0, len(self), _BATCH):
            for start, end in pairwise(self.bounds[first : first + _BATCH + 1]):
                yield self.data[start:end].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedStrings):
            return self.bounds == other.bounds and self.data == other.data
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]
