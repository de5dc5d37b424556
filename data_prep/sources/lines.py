"""The lines of a file that begin in a range of its bytes, bounded in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.sources.base import FilePart
from data_prep.sources.streams import Gap, read_chunks


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be given out."""

    start: int
    reason: str


def read_lines(part: FilePart, max_line_bytes: int) -> Iterator[tuple[int, bytes] | BadLine]:
    """(offset, line without its line feed) of every line that begins in the part, in order.

    Offsets are of the decompressed file. Of a compressed file, the part must begin at its start.

    Args:
        max_line_bytes: a longer line is bad, and never held in memory.
    """
    # The byte before the part tells whether the part's first byte begins a line.
    before = part.start - 1 if part.start else 0
    offset, pending, skipping = before, b"", bool(part.start)
    for chunk in read_chunks(part.file.path, start=before):
        if isinstance(chunk, Gap):
            yield BadLine(offset, chunk.reason)
            # What follows a gap is no whole line; offsets go on from the bytes that could be read.
            offset, pending, skipping = offset + len(pending), b"", True
            continue
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            length = len(pending) + len(line)
            if not skipping:
                if part.end is not None and offset >= part.end:
                    return
                whole = pending + line if pending else line
                yield (offset, whole) if length <= max_line_bytes else _too_long(offset, max_line_bytes)
            offset, pending, skipping = offset + length + 1, b"", False
        if part.end is not None and offset >= part.end:
            return
        if skipping:
            offset += len(rest)
            continue
        pending += rest
        if len(pending) > max_line_bytes:
            yield _too_long(offset, max_line_bytes)
            offset, pending, skipping = offset + len(pending), b"", True
    if pending:
        yield offset, pending


def _too_long(offset: int, max_line_bytes: int) -> BadLine:
    return BadLine(offset, f"a line longer than the limit of {max_line_bytes} bytes")
