"""Opening source files: local paths and fsspec URIs, plain, bzip2 or gzip, as bounded chunks of plain bytes.

Damage inside a compressed file is data, not an exception: it comes out as a `Gap` at its place in the stream,
after every byte that could still be read and before what can be read again.
"""

from __future__ import annotations

import bz2
import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from cluster.errors import MissingInputError

READ_BYTES = 1 << 20
"""Read from the file system in pieces of this size."""
FEED_BYTES = 1 << 14
"""Compressed bytes per decompressor call: fewer than a full bzip2 block of text ever compresses to, so that
what a call returns belongs to one block and can be withheld when that block proves damaged."""
OUTPUT_BYTES = 1 << 20
"""Most bytes per decompressor call, whatever the compression ratio."""
WITHHELD_BYTES = 16 << 20
"""Most decompressed bytes that wait for their block's checksum; past it they are passed on unchecked."""

BZIP2_MAGIC, GZIP_MAGIC = b"BZh", b"\x1f\x8b"
_BZIP2_STREAM = re.compile(rb"BZh[1-9](?=1AY&SY)")
_MAGIC_BYTES = 10


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a compressed file that could not be decompressed."""

    compressed_offset: int
    """Byte in the compressed file near which the damage was met (not before it)."""
    reason: str


class _Decompressor(Protocol):
    """What `bz2.BZ2Decompressor` offers, and `_Gzip` imitates."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Gzip:
    """One gzip member behind the interface of `bz2.BZ2Decompressor`."""

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


def open_file(path: str) -> BinaryIO:
    """Open a local path or fsspec URI for reading bytes.

    Raises:
        MissingInputError: the file is gone.
    """
    try:
        if "://" not in path:
            return open(path, "rb")
        import fsspec

        return fsspec.open(path, "rb", block_size=READ_BYTES).open()  # type: ignore[return-value]
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{path} was listed but is gone.", next_step="restore the file, or correct the source's `paths`"
        ) from error


def read_chunks(path: str, read_bytes: int = READ_BYTES) -> Iterator[bytes | Gap]:
    """The decompressed bytes of a file in chunks of bounded size, and the gaps between them.

    Compression is told by the first bytes of the file, not by its name. A file of several bzip2 streams (such
    as `pages-articles-multistream`) is resumed at the next stream after a damaged one.
    """
    with open_file(path) as file:
        head = file.read(read_bytes)
        rest = iter(lambda: file.read(read_bytes), b"")
        if head.startswith(BZIP2_MAGIC):
            yield from _decompress(head, rest, bz2.BZ2Decompressor, "bzip2", _BZIP2_STREAM)
        elif head.startswith(GZIP_MAGIC):
            yield from _decompress(head, rest, _Gzip, "gzip", None)
        else:
            yield from filter(None, [head])
            yield from rest


def _decompress(
    head: bytes,
    rest: Iterator[bytes],
    new: Callable[[], _Decompressor],
    kind: str,
    restart: re.Pattern[bytes] | None,
) -> Iterator[bytes | Gap]:
    """Decompress concatenated streams; after damage, go on at the next match of `restart`, if any."""
    source = _Source(head, rest)
    while source.start_stream():
        stream = new()
        try:
            yield from _one_stream(stream, source)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            source.rewind()
            yield Gap(source.offset, f"{kind} stream damaged after compressed byte {source.offset} ({error})")
            if restart is None or not source.seek(restart):
                return
            continue
        if not stream.eof:
            yield Gap(source.offset, f"{kind} stream truncated at compressed byte {source.offset}")
            return
        source.push_back(stream.unused_data)


def _one_stream(stream: _Decompressor, source: _Source) -> Iterator[bytes]:
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

    def __init__(self, head: bytes, rest: Iterator[bytes]) -> None:
        self._buffer = bytearray(head)
        self._rest = rest
        self._undecoded = bytearray()
        self.offset = 0

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            more = next(self._rest, b"")
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

    def forget_before(self, size: int) -> None:
        """Keep only the last `size` taken bytes for `rewind`: what came before them is decoded."""
        del self._undecoded[:-size]

    def rewind(self) -> None:
        """Go back to the first byte that was taken without result, but behind the stream's own first byte."""
        del self._undecoded[:1]
        self.push_back(bytes(self._undecoded))
        self._undecoded.clear()

    def seek(self, pattern: re.Pattern[bytes]) -> bool:
        """Skip to the next match of `pattern`; False when there is none before the end of the file."""
        while True:
            found = pattern.search(bytes(self._buffer))
            self.take(found.start() if found else max(0, len(self._buffer) - _MAGIC_BYTES))
            self._undecoded.clear()
            if found:
                return True
            if not self._fill(len(self._buffer) + 1):
                return False


def to_utf8(chunks: Iterable[bytes | Gap]) -> Iterator[bytes | Gap]:
    """Pass UTF-8 through; transcode UTF-16 (told by its byte order mark or by `<` in two bytes) to UTF-8.

    Unpaired surrogates become bytes that are no valid UTF-8, so that the reader of the stream rejects the
    element they are in, and only that.
    """
    head, started = b"", False
    decoder: codecs.IncrementalDecoder | None = None
    for chunk in chunks:
        if isinstance(chunk, Gap):
            if decoder:
                decoder.reset()
            yield chunk
            continue
        if not started:
            head += chunk
            if len(head) < 2:
                continue
            started, chunk = True, head
            if encoding := _utf16_encoding(head):
                decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass") if decoder else chunk
    if not started and head:
        yield head


def _utf16_encoding(head: bytes) -> str | None:
    """The byte order of UTF-16 text that starts with a byte order mark or `<`; None for other encodings."""
    return {b"\xff\xfe": "utf-16-le", b"<\0": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\0<": "utf-16-be"}.get(
        head[:2]
    )
