"""bzip2, gzip, xz and zstd as sequences of compressed streams, read with bounded memory and across damage.

A compressed file is one or more independent streams (bzip2 or xz streams, gzip members, zstd frames), one after the
other. Each begins with bytes that hardly occur elsewhere, so reading can start at any of them, and continues at
the next one after damage.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import zstandard

READ_BYTES = 1 << 20
"""Read from the file system in pieces of this size."""
FEED_BYTES = 1 << 14
"""Compressed bytes per decompressor call: fewer than a full bzip2 block of text ever compresses to, so that
what a call returns belongs to one block and can be withheld when that block proves damaged."""
OUTPUT_BYTES = 1 << 20
"""Most bytes per decompressor call, whatever the compression ratio."""
WITHHELD_BYTES = 16 << 20
"""Most decompressed bytes that wait for their block's checksum; past it they are passed on unchecked."""
UNDECODED_BYTES = 2 << 20
"""Most compressed bytes that are looked at again after damage; a bzip2 block is smaller."""
_XZ_MEMORY_BYTES = 1 << 31
"""`xz -9` takes 65 MiB to decompress, the largest dictionary of the format 1.5 GiB. Memory is taken as it fills."""
_ZSTD_WINDOW_BYTES = 1 << 31
"""The largest window of the format's own program (`--long=31`). Memory is taken as it fills."""
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5c\x5e\x5f]\x2a\x4d\x18")
"""Begins a frame without data (RFC 8878, section 3.1.2), such as `pzstd` writes first. In one that begins with 5D,
web archives have their dictionary, which is not read."""
_ZSTD_FEED_BYTES = 1 << 7
"""zstd's decompressor has no bound on its output; 4 bytes can become 128 KiB (RFC 8878, section 3.1.1.2)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A place in a file that could not be read; `collect` makes a reject of those that a source gives."""

    byte_offset: int
    """Byte at which reading failed, or near which: of the stored file, or of the decompressed one where a reader says
    so."""
    reason: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One of the streams that a compressed file consists of, or one of the files in an archive."""

    start: int
    """Its first byte in the compressed file; in the decompressed archive."""
    chunks: Iterator[bytes | Gap]
    """Its decompressed bytes; a Gap comes last. To be read before the next stream is asked for."""


class _Gzip:
    """One gzip member with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        output = self._member.decompress(self._member.unconsumed_tail + data, max(max_length, 0))
        # A full output buffer may leave more inside zlib even when all input is consumed.
        self.needs_input = not self._member.unconsumed_tail and len(output) != max_length
        return output


class _Zstd:
    """One zstd frame with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self._input = b""
        self._output = b""

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._output

    @property
    def needs_input(self) -> bool:
        return not self._frame.eof and not self._input and not self._output

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._input

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        data = self._input + data
        made = [self._output]
        size, position = len(self._output), 0
        while size < max_length and position < len(data) and not self._frame.eof:
            made.append(self._frame.decompress(data[position : position + _ZSTD_FEED_BYTES]))
            size += len(made[-1])
            position += _ZSTD_FEED_BYTES
        self._input = data[position:]
        output = b"".join(made)
        self._output = output[max_length:]
        return output[:max_length]


@dataclass(frozen=True, slots=True)
class Compression:
    """A format of compressed files."""

    name: str
    magic: bytes
    """First bytes of its files."""
    stream_start: re.Pattern[bytes]
    """First bytes of its streams, precise enough to find them anywhere in a file."""
    new: Callable[[], Any]
    """Makes a decompressor with the interface of `bz2.BZ2Decompressor`."""


_LONGEST_START = 10
_ZSTD = Compression("zstd", b"\x28\xb5\x2f\xfd", re.compile(rb"\x28\xb5\x2f\xfd"), _Zstd)
_COMPRESSIONS = (
    Compression("bzip2", b"BZh", re.compile(rb"BZh[1-9](?=1AY&SY)"), bz2.BZ2Decompressor),
    # RFC 1952, section 2.3: deflate, no reserved flag, a time, an effort, an operating system (zlib knows some more).
    Compression(
        "gzip",
        b"\x1f\x8b",
        re.compile(rb"\x1f\x8b\x08[\x00-\x1f](?=[\x00-\xff]{4}[\x00\x02\x04][\x00-\x13\xff])"),
        _Gzip,
    ),
    Compression(
        "xz",
        b"\xfd7zXZ\0",
        re.compile(rb"\xfd7zXZ\x00"),
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
    ),
    _ZSTD,
)


def compression_of(head: bytes) -> Compression | None:
    """The format of a file that begins with `head`; None when it is none of those known."""
    if _ZSTD_SKIPPABLE.match(head):
        return _ZSTD
    return next((each for each in _COMPRESSIONS if head.startswith(each.magic)), None)


class Window:
    """The part of a stream that is being looked at. It moves forward only, and grows as asked."""

    def __init__(self, more: Callable[[], bytes], base: int = 0) -> None:
        self._more = more
        self._buffer = bytearray()
        self.base = base
        """Offset of the first byte that is not forgotten."""

    def _fill(self, end: int) -> bool:
        while self.end < end:
            chunk = self._more()
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def get(self, start: int, size: int) -> bytes:
        """Bytes from `start` on; fewer than `size` at the end of the stream only."""
        self._fill(start + size)
        with memoryview(self._buffer) as buffer:
            return bytes(buffer[start - self.base : start - self.base + size])

    @property
    def end(self) -> int:
        """Offset after the last byte that was read."""
        return self.base + len(self._buffer)

    def forget(self, before: int) -> None:
        """Let go of the bytes before an offset."""
        self._fill(before)
        del self._buffer[: before - self.base]
        self.base = before

    def skip(self, start: int, unwanted: bytes) -> int:
        """Offset from `start` on of the first byte that is not unwanted, or the end. All but one byte before it is
        forgotten."""
        while data := self.get(start, 1 << 12):
            rest = data.lstrip(unwanted)
            start += len(data) - len(rest)
            self.forget(max(self.base, start - 1))
            if rest:
                break
        return start

    def search(
        self, pattern: re.Pattern[bytes], start: int, max_length: int, limit: int | None = None
    ) -> int | None:
        """First match from `start` on of a pattern that sees at most `max_length` bytes; None where the stream ends
        before, or where none begins before `limit`, beyond which little is read.

        Bytes that were searched in vain may be forgotten.
        """
        while limit is None or start < limit:
            loaded = self._fill(start + READ_BYTES)
            found = pattern.search(self._buffer, start - self.base)
            if found:
                return self.base + found.start()
            if not loaded:
                return None
            start = max(start, self.end - max_length)
            self.forget(start)
        return None


def decompress_streams(
    file: BinaryIO, compression: Compression, start: int = 0, end: int | None = None
) -> Iterator[Stream]:
    """The streams of a compressed file from the first that begins at or after byte `start` (the file's beginning
    is always taken for one) to the first that begins at or after `end`.

    Bytes between two streams belong to the first of them. So ranges that cover a file give every byte of it once.
    """
    file.seek(start)
    window = Window(lambda: file.read(READ_BYTES), start)
    if start > 0 and not _seek(window, start, compression, end):
        return
    # The window begins where the next stream does. Writers may pad streams with zero bytes.
    while data := window.get(window.base, FEED_BYTES):
        content = data.lstrip(b"\0")
        start = window.base + len(data) - len(content)
        window.forget(start)
        if not content:
            continue
        beginning = window.get(start, _LONGEST_START)
        if end is not None and start >= end and compression.stream_start.match(beginning):
            return
        stream = Stream(start, _decompress(window, compression))
        yield stream
        deque(stream.chunks, maxlen=0)


def _seek(window: Window, start: int, compression: Compression, limit: int | None = None) -> bool:
    """Move to the next stream from `start` on; False when there is none before `limit` or the end of the file."""
    found = window.search(compression.stream_start, start, _LONGEST_START, limit)
    window.forget(window.end if found is None else found)
    return found is not None


def _decompress(window: Window, compression: Compression) -> Iterator[bytes | Gap]:
    """Decompress the stream at the beginning of the window, and move to the next one; after damage, to the first that
    begins after what was decoded.

    Output is passed on a block at a time once its checksum has been seen. bzip2 verifies a block after handing out its
    bytes. Only when the decompressor asks for more input is everything before it verified; output of a call that fails
    later is dropped.
    """
    kind, stream = compression.name, compression.new()
    # Next byte to feed, and the first that was fed without result.
    position = undecoded = window.base
    try:
        while not stream.eof and (data := window.get(position, FEED_BYTES)):
            position += len(data)
            undecoded = max(undecoded, position - UNDECODED_BYTES)
            withheld: list[bytes] = []
            size = 0
            while True:
                output = stream.decompress(data, OUTPUT_BYTES)
                data = b""
                withheld.append(output)
                size += len(output)
                if stream.eof or stream.needs_input:
                    break
                if size > WITHHELD_BYTES:
                    yield from withheld
                    withheld, size = [], 0
            if size:
                undecoded = max(undecoded, position - FEED_BYTES)
            window.forget(undecoded)
            yield from filter(None, withheld)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, ValueError) as error:
        damage = Gap(undecoded + 1, f"{kind} stream damaged after compressed byte {undecoded + 1} ({error})")
    else:
        if stream.eof:
            window.forget(position - len(stream.unused_data))
            return
        # A damaged length makes a stream swallow those after it; what it gave nothing for is looked at again.
        damage = Gap(position, f"{kind} stream truncated at compressed byte {position}")
    _seek(window, undecoded + 1, compression)
    yield damage
