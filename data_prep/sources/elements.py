"""Cut a byte stream into the elements between an opening and a closing token, with exact offsets.

A file of many documents is too big for a parser to hold and too precious to lose to one bad document. So the
stream is cut first, by tokens that cannot occur inside a well-formed document, and each element is parsed on
its own. The output depends on the bytes only, never on how they were chunked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_prep.sources.streams import Gap

HEAD_BYTES = 1 << 20
"""How much is kept of the text between two elements, such as a file's header."""
TAIL_BYTES = 64
_NEWLINE = ord("\n")


@dataclass(frozen=True, slots=True)
class Element:
    """One element, its tokens included."""

    start: int
    end: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Between:
    """The bytes before, between or after intact elements; there is one, maybe empty, at each such place."""

    start: int
    end: int
    head: bytes
    """The first HEAD_BYTES of them."""
    tail: bytes
    """The last TAIL_BYTES of them."""
    at_end: bool = False
    """Whether the stream ends with them."""


Piece = Element | Between | Gap
"""A Gap is a part of the stream that is no intact element; its offset is like those of elements."""


def cut_elements(
    chunks: Iterable[bytes | Gap],
    opening: bytes,
    closing: bytes,
    max_bytes: int,
    *,
    at_line_start: bool = False,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Piece]:
    """Elements of a stream in order, what lies between them, and its flaws.

    With `start` and `end`, only the pieces from the first opening token in `start <= byte < end` (for `start` 0,
    from the first byte of the stream) up to the first opening token at or after `end`. So ranges that cover the
    stream give every piece of it once, and each as it comes out of the whole stream.

    Args:
        chunks: the stream; at a Gap the open element is given up and the next opening token is looked for. It
            begins with the byte before `start`, where there is one.
        max_bytes: a longer element is a flaw; it is skipped without being held in memory.
        at_line_start: tokens count only at the start of a line.
    """
    cutter = _Cutter(opening, closing, max_bytes, at_line_start, start, end)
    for chunk in chunks:
        yield from cutter.gap(chunk) if isinstance(chunk, Gap) else cutter.feed(chunk)
        if cutter.is_done:
            return
    yield from cutter.finish()


_SEEKING, _BETWEEN, _INSIDE, _SKIPPING = "seeking", "between", "inside", "skipping"


class _Cutter:
    """State machine: seeking the first element, between elements, inside one, or skipping what cannot be used.

    Offsets are absolute.
    """

    def __init__(
        self, opening: bytes, closing: bytes, max_bytes: int, at_line_start: bool, start: int, end: int | None
    ) -> None:
        self._opening, self._closing, self._max_bytes = opening, closing, max_bytes
        self._tokens = re.compile(re.escape(opening) + b"|" + re.escape(closing))
        self._at_line_start = at_line_start
        self._overlap = max(len(opening), len(closing)) - 1
        self._buffer = bytearray()
        self._base = max(0, start - 1)  # offset of the buffer's first byte
        self._scan = start  # no token starts before this offset that was not handled
        self._limit = math.inf if end is None else end
        self._state = _SEEKING if start > 0 else _BETWEEN
        self._start = 0  # of the open element, or of the bytes between elements
        self.is_done = False
        self._head, self._tail = bytearray(), bytearray()

    @property
    def _end(self) -> int:
        return self._base + len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._buffer += data
        while found := self._tokens.search(self._buffer, self._scan - self._base):
            token, start, end = found.group(), self._base + found.start(), self._base + found.end()
            del found  # its hold on the buffer would forbid resizing
            self._scan = end
            # At the start of the file and after a gap, where nothing is known of the byte before, a line may start.
            place = start - self._base
            if self._at_line_start and place and self._buffer[place - 1] != _NEWLINE:
                continue
            if self._state is _INSIDE and end - self._start > self._max_bytes:
                yield self._too_long()
            yield from self._open(start) if token == self._opening else self._close(start, end)
            if self.is_done:
                return
        if self._state is _INSIDE and self._end - self._start > self._max_bytes:
            yield self._too_long()
        self._scan = max(self._scan, self._end - self._overlap)
        self.is_done = self._state is _SEEKING and self._scan >= self._limit
        # One byte more than a torn token could need shows whether that token starts a line.
        self._release(self._start if self._state is _INSIDE else self._scan - 1)

    def gap(self, gap: Gap) -> Iterator[Piece]:
        """Give up the open element, and forget a token that the gap tore."""
        yield Gap(self._start if self._state is _INSIDE else self._end, gap.reason)
        self._state = _SKIPPING
        self._scan = self._end
        self._release(self._end)

    def finish(self) -> Iterator[Piece]:
        if self._state is _INSIDE:
            yield Gap(self._start, f"the file ends before {_shown(self._closing)}")
        elif self._state is _BETWEEN:
            yield self._between(self._end, at_end=True)

    def _open(self, start: int) -> Iterator[Piece]:
        if self._state is _INSIDE:
            yield Gap(self._start, f"{_shown(self._opening)} again before {_shown(self._closing)}")
        elif self._state is _BETWEEN:
            yield self._between(start)
        self._state, self._start = _INSIDE, start
        self.is_done = start >= self._limit

    def _close(self, start: int, end: int) -> Iterator[Piece]:
        if self._state is _SEEKING:
            return
        if self._state is _INSIDE:
            first, last = self._start - self._base, end - self._base
            yield Element(self._start, end, bytes(self._buffer[first:last]))
        elif self._state is _BETWEEN:
            yield Gap(start, f"{_shown(self._closing)} without {_shown(self._opening)}")
        self._state = _SKIPPING
        self._release(end)
        self._state, self._start = _BETWEEN, end
        self._head, self._tail = bytearray(), bytearray()

    def _too_long(self) -> Gap:
        self._state = _SKIPPING
        return Gap(self._start, f"longer than the limit of {self._max_bytes} bytes")

    def _between(self, end: int, at_end: bool = False) -> Between:
        self._release(end)
        return Between(self._start, end, bytes(self._head), bytes(self._tail), at_end)

    def _release(self, offset: int) -> None:
        """Drop the buffer before `offset`, keeping what a Between reports."""
        size = max(0, offset - self._base)
        if self._state is _BETWEEN:
            self._head += self._buffer[: min(size, HEAD_BYTES - len(self._head))]
            self._tail += self._buffer[max(0, size - TAIL_BYTES) : size]
            del self._tail[:-TAIL_BYTES]
        del self._buffer[:size]
        self._base += size


def _shown(token: bytes) -> str:
    return token.decode("ascii", "replace").strip()
