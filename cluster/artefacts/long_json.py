"""JSON with arrays of a million members, written and hashed piece by piece: memory holds a batch of them at a time.

The pieces are together what orjson makes of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import orjson
import xxhash

_BATCH = 4096
"""Members that are written at a time."""
_BATCH_BYTES = 1 << 20
"""Text that is parsed at a time."""
_BETWEEN = b"\n    },"
"""The end of a member with another one after it; line breaks within strings are escaped."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An array whose members are made when they are written; it stands for a list in a JSON value, as a member of the
    outermost object or array."""

    members: Callable[[], Iterable[Any]]
    """Called for every time that they are written."""


def hash_json(value: Any) -> str:
    """xxh3_128 hex digest of the canonical JSON (sorted keys) of `value`."""
    digest = xxhash.xxh3_128()
    for piece in canonical_pieces(value):
        digest.update(piece)
    return digest.hexdigest()


def canonical_pieces(value: Any) -> Iterator[bytes]:
    """Compact JSON with sorted keys."""
    if isinstance(value, Mapping) and _has_rows(value.values()):
        yield b"{"
        for number, name in enumerate(sorted(value)):
            yield (b"," if number else b"") + orjson.dumps(name) + b":"
            yield from _canonical_member(value[name])
        yield b"}"
    elif isinstance(value, list | tuple) and _has_rows(value):
        yield b"["
        for number, member in enumerate(value):
            yield b"," if number else b""
            yield from _canonical_member(member)
        yield b"]"
    else:
        yield orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def indented_pieces(contents: Mapping[str, Any]) -> Iterator[bytes]:
    """An object in lines, indented by two spaces a level, its keys as they come."""
    for number, (name, value) in enumerate(contents.items()):
        yield (b",\n  " if number else b"{\n  ") + orjson.dumps(name) + b": "
        if isinstance(value, Rows):
            yield from _indented_rows(value)
        else:
            # Line breaks within strings are escaped: all that there are belong to the layout.
            yield orjson.dumps(value, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n  ")
    yield b"\n}" if contents else b"{}"


def _has_rows(values: Iterable[Any]) -> bool:
    return Rows in map(type, values)


def _canonical_member(value: Any) -> Iterator[bytes]:
    if not isinstance(value, Rows):
        yield orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return
    yield b"["
    for number, batch in enumerate(_batches(value.members())):
        yield (b"," if number else b"") + orjson.dumps(batch, option=orjson.OPT_SORT_KEYS)[1:-1]
    yield b"]"


def _indented_rows(value: Rows) -> Iterator[bytes]:
    is_empty = True
    for batch in _batches(value.members()):
        lines = orjson.dumps(batch, option=orjson.OPT_INDENT_2)[1:-2].replace(b"\n", b"\n  ")
        yield (b"[" if is_empty else b",") + lines
        is_empty = False
    yield b"[]" if is_empty else b"\n  ]"


def _batches(members: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(members)
    while batch := list(islice(left, _BATCH)):
        yield batch


@dataclass(frozen=True, slots=True)
class LongArray:
    """The members of an array of objects in a JSON text that `indented_pieces` made."""

    text: bytes
    start: int
    """Where the first member begins."""
    end: int
    """Behind the last member."""

    def members(self) -> Iterator[Any]:
        """The members, parsed anew in every iteration.

        Raises:
            ValueError: it is no JSON.
        """
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Any]]:
        """The members, some thousands at a time; errors as for `members`."""
        start = self.start
        while start < self.end:
            found = self.text.find(_BETWEEN, min(start + _BATCH_BYTES, self.end), self.end)
            end = self.end if found < 0 else found + len(_BETWEEN) - 1
            yield orjson.loads(b"[" + self.text[start:end] + b"]")
            start = end + 1


def cut_array(text: bytes, name: str) -> tuple[bytes, LongArray] | None:
    """Take an array of objects out of the text of an object; None where it is not laid out by `indented_pieces`.

    Returns:
        The text with null in its place, and the array.
    """
    opening, closing = b'\n  "%s": [\n' % name.encode(), b"\n  ]"
    start = text.find(opening)
    end = text.find(closing, start)
    if start < 0 or end < 0 or text.find(opening, end) >= 0:
        return None
    first = start + len(opening)
    before = text[: first - len(b"[\n")]
    return before + b"null" + text[end + len(closing) :], LongArray(text, first, end)
