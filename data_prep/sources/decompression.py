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
    """A part of a compressed file that could not be decompressed."""

    compressed_offset: int
    """Byte in the compressed file near which the damage was met (not before it)."""
    reason: str


@dataclass(frozen=True, slots=True)
class CompressedStream:
    """One of the streams that a compressed file consists of."""

    start: int
    """Byte in the compressed file."""
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


def decompress_streams(
    file: BinaryIO, compression: Compression, start: int = 0, end: int | None = None
) -> Iterator[CompressedStream]:
    """The streams of a compressed file from the first that begins at or after byte `start` (the file's beginning
    is always taken for one) to the first that begins at or after `end`.

    Bytes between two streams belong to the first of them. So ranges that cover a file give every byte of it once.
    """
    file.seek(start)
    source = _Source(file, start)
    if start > 0 and not source.seek(compression.stream_start, end):
        return
    while source.start_stream():
        if end is not None and source.offset >= end and source.starts_with(compression.stream_start):
            return
        stream = CompressedStream(source.offset, _decompress(source, compression))
        yield stream
        deque(stream.chunks, maxlen=0)


def _decompress(source: _Source, compression: Compression) -> Iterator[bytes | Gap]:
    """Decompress the stream that comes next; after damage, move to the start of a later one."""
    kind, stream = compression.name, compression.new()
    try:
        yield from _one_stream(stream, source)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, ValueError) as error:
        source.rewind()
        damage = Gap(source.offset, f"{kind} stream damaged after compressed byte {source.offset} ({error})")
        source.seek(compression.stream_start)
        yield damage
        return
    if not stream.eof:
        # A damaged length makes a stream swallow those after it; what it gave nothing for is looked at again.
        damage = Gap(source.offset, f"{kind} stream truncated at compressed byte {source.offset}")
        source.rewind()
        source.seek(compression.stream_start)
        yield damage
        return
    source.push_back(stream.unused_data)


def _one_stream(stream: Any, source: _Source) -> Iterator[bytes]:
    """Output of one compressed stream, a block at a time once its checksum has been seen.

    bzip2 verifies a block after handing out its bytes. Only when the decompressor asks for more input is
    everything before it verified; output of a call that fails later is dropped.
    """
    while not stream.eof and (data := source.take(FEED_BYTES)):
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
            source.forget_before(FEED_BYTES)
        yield from filter(None, withheld)


class _Source:
    """Compressed input that counts the offset of its next unread byte and can go back to undecoded bytes."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        self._file = file
        self._buffer = bytearray()
        self._undecoded = bytearray()
        self.offset = offset

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            more = self._file.read(READ_BYTES)
            if not more:
                return False
            self._buffer += more
        return True

    def take(self, size: int) -> bytes:
        self._fill(size)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.offset += len(data)
        self._undecoded += data
        self.forget_before(UNDECODED_BYTES)
        return data

    def push_back(self, data: bytes) -> None:
        self._buffer[:0] = data
        self.offset -= len(data)

    def start_stream(self) -> bool:
        """Move to the next stream; False at the end of the file. Writers may pad streams with zero bytes."""
        while self._fill(1) and self._buffer[0] == 0:
            self.take(len(self._buffer) - len(self._buffer.lstrip(b"\0")))
        self._undecoded.clear()
        return self._fill(1)

    def starts_with(self, pattern: re.Pattern[bytes]) -> bool:
        self._fill(_LONGEST_START)
        return pattern.match(bytes(self._buffer[:_LONGEST_START])) is not None

    def forget_before(self, size: int) -> None:
        """Keep only the last `size` taken bytes for `rewind`: what came before them is decoded."""
        del self._undecoded[:-size]

    def rewind(self) -> None:
        """Go back to the first byte that was taken without result, but after the stream's own first byte."""
        del self._undecoded[:1]
        self.push_back(bytes(self._undecoded))
        self._undecoded.clear()

    def seek(self, pattern: re.Pattern[bytes], limit: int | None = None) -> bool:
        """Skip to the next match of `pattern`; False when there is none before `limit` or the end of the file."""
        while limit is None or self.offset < limit:
            found = pattern.search(bytes(self._buffer))
            self.take(found.start() if found else max(0, len(self._buffer) - _LONGEST_START))
            self._undecoded.clear()
            if found:
                return True
            if not self._fill(len(self._buffer) + 1):
                self.take(len(self._buffer))
                return False
        return False
