"""Web archives as raw records: one by one, from any byte of a file on, and across damage.

Archives are compressed record by record (WARC 1.1, annex D), so a record is a gzip member or zstd frame; or they
are plain, and a record is as long as its Content-Length says. What looks like the beginning of a record may well
be inside another: pages are about archives, and archives are archived. Therefore a record begins

* where the record before it ends, if that one is whole, and
* at the next byte that looks like a beginning, where the one before it is damaged or longer than the limit.

A whole record is never longer than the limit. So a reader that starts that much before its part has met the true
beginnings when it reaches its part, and the parts of a file read as the whole file does.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from data_prep.sources.decompression import READ_BYTES, Compression, Gap, Window, compression_of
from data_prep.sources.streams import foreign_format, open_file, read_chunks

HEADER_BYTES = 1 << 16
"""Most bytes of a record's own header, or of an HTTP header."""
_FEED_BYTES = 1 << 16
_OUTPUT_BYTES = 1 << 20
_FIRST_BLOCK_BYTES = 1 << 17
"""The first decompressed bytes can be had from fewer than so many compressed ones (RFC 8878, section 3.1.1.2)."""
_LONGEST_BEGINNING = 32
_WHOLE_FILE = frozenset({"bzip2", "xz"})
"""Formats that compress an archive as a whole."""
_PADDING = b"\r\n\0"
_VERSION = rb"WARC/\d{1,3}\.\d{1,3}[ \t]{0,8}\r?\n"
_BEGINNING = re.compile(_VERSION)
_LINE_OF_BEGINNING = re.compile(rb"\n(?=" + _VERSION + rb")")
_CONTENT_LENGTH = re.compile(rb"\ncontent-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?\n", re.IGNORECASE)
_EMPTY_LINE = re.compile(rb"\n\r?\n")
_RECORD_END = b"\r\n\r\n"
_NO_HEADER = "a record without a whole header"
_TRUNCATED = "cut short by the end of the file"


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One whole record; or the beginning of one that is longer than the limit."""

    header: bytes
    """From `WARC/` to the empty line after it."""
    content: bytes
    start: int
    """First byte, in the decompressed file, or in the compressed stream that begins at `stream_start`."""
    end: int
    """Byte after its content, counted alike."""
    stream_start: int | None
    """First byte of the record's gzip member or zstd frame in the stored file."""
    problem: str = ""
    """Why the content is not whole; empty where it is."""

    @property
    def stored_start(self) -> int:
        """First byte in the stored file of the record, or of the compressed stream that it is in."""
        return self.start if self.stream_start is None else self.stream_start


def read_records(path: str, start: int, end: int | None, max_bytes: int) -> Iterator[RawRecord | Gap]:
    """The records that begin in `start <= byte < end` of a stored file, in order, and the damage there. Its offset is
    of the decompressed file; of the stored file where it is compressed record by record.

    Args:
        max_bytes: a longer record (decompressed, header included) is never held in memory; only its beginning is given.
    """
    with open_file(path) as file:
        form = _form_of(Window(lambda: file.read(READ_BYTES)), max_bytes)
        if form is None:
            yield from _read_stream(path, start, max_bytes)
            return
        first = max(0, start - form.longest)
        file.seek(first)
        yield from _read_form(form, Window(lambda: file.read(READ_BYTES), first), start, end)


def is_record_by_record(path: str, max_bytes: int) -> bool:
    """Whether a file's records can be read from any byte on."""
    with open_file(path) as file:
        return _form_of(Window(lambda: file.read(READ_BYTES)), max_bytes) is not None


def _read_stream(path: str, start: int, max_bytes: int) -> Iterator[RawRecord | Gap]:
    """Records of a file that was compressed as a whole, read from its first byte."""
    if start > 0:
        return
    gaps: list[Gap] = []

    def plain_bytes() -> Iterator[bytes]:
        size = 0
        for chunk in read_chunks(path):
            if isinstance(chunk, Gap):
                gaps.append(Gap(size, chunk.reason))
            else:
                size += len(chunk)
                yield chunk

    chunks = plain_bytes()
    for piece in _read_form(_Plain(max_bytes), Window(lambda: next(chunks, b"")), 0, None):
        yield from gaps
        gaps.clear()
        yield piece
    yield from gaps


def _read_form(
    form: _Plain | _Compressed, window: Window, start: int, end: int | None
) -> Iterator[RawRecord | Gap]:
    if start == 0 and (problem := _problem_of_head(form.first_bytes(window, 0))):
        yield Gap(0, problem)
    position = form.find(window, window.base)
    while position is not None and (end is None or position < end):
        window.forget(position)
        pieces, unit_end = form.read(window, position)
        if position >= start:
            yield from pieces
        after = position + 1 if unit_end is None else window.skip(unit_end, _PADDING)
        at_end = not window.get(after, 1)
        following = form.find(window, after)
        if unit_end is not None and position >= start and following != after and not at_end:
            yield Gap(after, "bytes that belong to no record")
        position = following


_Unit = tuple[list[RawRecord | Gap], int | None]
"""The record, or the damage, that begins at one place; and the offset of its end, None when that is not known, because
it is damaged or too long."""


class _Plain:
    """Records one after the other, each as long as it says."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.longest = max_bytes + 1
        """Most bytes of the stored file from the beginning of a whole record to its end."""

    def find(self, window: Window, start: int) -> int | None:
        """Offset from `start` on of the first likely record."""
        if start == 0 and _BEGINNING.match(window.get(0, _LONGEST_BEGINNING)):
            return 0
        found = window.search(_LINE_OF_BEGINNING, max(start - 1, window.base), _LONGEST_BEGINNING)
        return None if found is None else found + 1

    def first_bytes(self, window: Window, position: int) -> bytes:
        """The first decompressed bytes from an offset on, as many as a beginning has; none where there is damage."""
        return window.get(position, _LONGEST_BEGINNING)

    def read(self, window: Window, position: int) -> _Unit:
        """The record, or the damage, at an offset that `find` returned."""
        head = window.get(position, HEADER_BYTES)
        sizes = _sizes(head)
        if sizes is None:
            return [Gap(position, _NO_HEADER)], None
        size = sum(sizes)
        if size > self._max_bytes:
            return [_record(head, sizes[0], position, None, _too_long(self._max_bytes))], None
        data = window.get(position, size)
        if len(data) < size:
            return [Gap(position, _TRUNCATED)], None
        end = position + size
        # A bounded part of it: padding may go on without end, and after damage all from here on is read again.
        padding = window.get(end, 1 << 12)
        rest = padding.lstrip(_PADDING)[:_LONGEST_BEGINNING]
        # The end of the file may have come within the first line of the next record, or before it.
        is_torn = len(rest) < _LONGEST_BEGINNING and b"WARC/".startswith(rest[:5])
        # A record that ends as it should is whole, whatever became of the one after it.
        is_ended = is_torn or _BEGINNING.match(rest) or window.get(end, 4) == _RECORD_END
        if not is_ended:
            return [Gap(position, "Content-Length does not lead to the next record")], None
        return [_record(data, sizes[0], position, None)], end


class _Compressed:
    """Every record a gzip member or zstd frame of its own. Methods are like those that `_Plain` has."""

    def __init__(self, compression: Compression, max_bytes: int) -> None:
        self._compression = compression
        self._magic = re.compile(re.escape(compression.magic))
        self._max_bytes = max_bytes
        self.longest = max_bytes + (max_bytes >> 6) + _FEED_BYTES
        """Incompressible data grows by less than that."""

    def find(self, window: Window, start: int) -> int | None:
        while (found := window.search(self._magic, start, _LONGEST_BEGINNING)) is not None:
            if _BEGINNING.match(self.first_bytes(window, found)):
                break
            start = found + 1
        return found

    def first_bytes(self, window: Window, position: int) -> bytes:
        data = window.get(position, _FIRST_BLOCK_BYTES)
        try:
            return self._compression.new().decompress(data, _LONGEST_BEGINNING)
        except (zlib.error, zstandard.ZstdError):
            return b""

    def read(self, window: Window, position: int) -> _Unit:
        data, size, problem = self.decompress(window, position)
        if problem:
            sizes = _sizes(data) if problem == _too_long(self._max_bytes) else None
            if sizes is None:
                return [Gap(position, problem)], None
            return [_record(data[:HEADER_BYTES], sizes[0], 0, position, problem)], None
        return list(_cut(data, position)), position + size

    def decompress(self, window: Window, position: int) -> tuple[bytes, int, str]:
        """A stream's bytes up to the limit, the stored bytes that they took, and why there are not more of them."""
        stream, output, size, taken = self._compression.new(), [], 0, 0
        kind = self._compression.name
        while not stream.eof:
            data = window.get(position + taken, _FEED_BYTES)
            if not data:
                return b"".join(output), taken, f"{kind} stream {_TRUNCATED}"
            taken += len(data)
            try:
                while data or not (stream.eof or stream.needs_input):
                    output.append(stream.decompress(data, _OUTPUT_BYTES))
                    data = b""
                    size += len(output[-1])
                    if size > self._max_bytes:
                        break
            except (zlib.error, zstandard.ZstdError) as error:
                return b"".join(output), taken, f"{kind} stream damaged: {error}"
            if size > self._max_bytes or taken - len(stream.unused_data) > self.longest:
                return b"".join(output), taken, _too_long(self._max_bytes)
        return b"".join(output), taken - len(stream.unused_data), ""


def _cut(data: bytes, stream_start: int) -> Iterator[RawRecord | Gap]:
    """The records in one decompressed stream; usually there is one."""
    position = 0
    while position < len(data):
        sizes = _sizes(data[position : position + HEADER_BYTES])
        if sizes is None or position + sum(sizes) > len(data):
            what = _NO_HEADER if sizes is None else "Content-Length exceeds the content"
            yield Gap(stream_start, f"{what}, at byte {position} of the compressed stream")
            return
        end = position + sum(sizes)
        rest = data[end:].lstrip(_PADDING)
        is_followed = not rest or _BEGINNING.match(rest)
        if is_followed or data.startswith(_RECORD_END, end):
            yield _record(data[position:end], sizes[0], position, stream_start)
        if not is_followed:
            yield Gap(
                stream_start, f"bytes that belong to no record from byte {end} of the compressed stream on"
            )
            return
        position = len(data) - len(rest)


def _sizes(head: bytes) -> tuple[int, int] | None:
    """Bytes of a record's header, with the empty line, and of its content as the header says."""
    end = _EMPTY_LINE.search(head, 0, HEADER_BYTES)
    length = _CONTENT_LENGTH.search(head, 0, end.start() + 1) if end else None
    return None if end is None or length is None else (end.end(), int(length.group(1)))


def _record(
    data: bytes, header_bytes: int, start: int, stream_start: int | None, problem: str = ""
) -> RawRecord:
    header, content = data[:header_bytes], data[header_bytes:]
    return RawRecord(header, content, start, start + len(data), stream_start, problem)


def _form_of(window: Window, max_bytes: int) -> _Plain | _Compressed | None:
    """How the records of a file lie in it, by its first bytes; None when it is compressed as a whole."""
    compression = compression_of(window.get(0, _LONGEST_BEGINNING))
    if compression is None:
        return _Plain(max_bytes)
    if compression.name in _WHOLE_FILE:
        return None
    form = _Compressed(compression, max_bytes)
    data, _, problem = form.decompress(window, 0)
    # The first record, `warcinfo`, is small: when it shares its stream, or has not all of it, all will.
    sizes = _sizes(data)
    if sizes is None:
        return form if problem else None
    is_alone = not data[sum(sizes) :].strip(_PADDING)
    return form if is_alone and (problem or sum(sizes) <= len(data)) else None


def _problem_of_head(head: bytes) -> str:
    """Why no record begins with a file's first bytes; empty when one does."""
    if head.startswith(b"filedesc:"):
        return "an ARC file, the format before WARC; `warcio recompress FILE NEW.warc.gz` converts it"
    if _BEGINNING.match(head):
        return ""
    return foreign_format(head) or "no WARC record at the beginning of the file"


def _too_long(max_bytes: int) -> str:
    return f"a record longer than the limit of {max_bytes} bytes"
