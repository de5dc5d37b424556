"""Source files as bounded chunks of plain bytes: local paths and fsspec URIs, plain, compressed or in tar archives.

Damage inside a compressed file is data, not an exception: it comes out as a `Gap` at its place in the stream,
after every byte that could still be read and before what can be read again.
"""

from __future__ import annotations

import codecs
import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from cluster.artefacts import places
from cluster.artefacts.errors import MissingInputError, StorageError
from data_prep.sources.decompression import (
    READ_BYTES,
    Gap,
    Stream,
    Window,
    compression_of,
    decompress_streams,
)
from data_prep.text.encodings import utf16_encoding

# -- formats that no source reads ----------------------------------------------------------------------------

HEAD_BYTES = 512
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257
"""POSIX.1-1988 `ustar` header: the magic lies after the name, mode, owner, size, time, checksum and link."""
_FORMATS = {
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive; unpack it with `7z x FILE`",
    b"PK\x03\x04": "a zip archive; unpack it with `unzip FILE`",
    b"Rar!\x1a\x07": "a RAR archive; unpack it with `unrar x FILE`",
    b"\x04\x22\x4d\x18": "compressed with lz4; decompress it with `lz4 -d FILE`",
    b"\x5d\x2a\x4d\x18": "compressed by zstd with a dictionary; compress it anew without one",
    b"%PDF-": "a PDF file; convert it with `pdftotext FILE`",
    b"{\\rtf": "an RTF file; save it as plain text",
    b"PAR1": "a Parquet file; the kind of source that reads it is `parquet`",
    b"SQLite format 3\0": "an SQLite database",
}


def foreign_format(head: bytes) -> str | None:
    """The kind of a file that begins with `head` (decompressed), and what to do with it; None if it may be text."""
    if inner := compression_of(head):
        return f"compressed twice, the second time with {inner.name}; decompress it once"
    if is_tar(head):
        return "a tar archive; unpack it with `tar -xf FILE`"
    return next((text for magic, text in _FORMATS.items() if head.startswith(magic)), None)


def is_tar(head: bytes) -> bool:
    """Whether a file that begins with `head` (decompressed, HEAD_BYTES or more) is a tar archive."""
    return head[_TAR_OFFSET:].startswith(_TAR_MAGIC)


def open_file(path: str) -> BinaryIO:
    """Open a local path or fsspec URI for reading bytes.

    Raises:
        MissingInputError: the file is gone.
        StorageError: it may not be read.
    """
    try:
        return places.open_file(path)
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{path} was listed but is gone.", next_step="restore the file, or correct the source's `paths`"
        ) from error
    except PermissionError as error:
        raise StorageError(
            f"{path} may not be read: {error}.",
            next_step="let the user that runs the workers read it (`chmod a+r`), or correct the source's `paths`",
        ) from error


def storage_of(path: str) -> str:
    """How a file is stored: "bzip2", "gzip", "xz", "zstd", "utf-16-le", "utf-16-be" or "plain", by its first bytes."""
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
    compression = compression_of(head)
    return compression.name if compression else utf16_encoding(head) or "plain"


def read_chunks(
    path: str, *, start: int = 0, end: int | None = None, allow_foreign: bool = False
) -> Iterator[bytes | Gap]:
    """The decompressed bytes of a file in chunks of bounded size, and the gaps between them.

    Compression is recognised by the first bytes of the file, not by its name. A file of several compressed streams
    (such as `pages-articles-multistream`, WARC files, zstd files of several frames) is resumed at the next stream
    after a damaged one. Of a file of a format that holds no plain text, such as a 7-Zip archive, only a gap is given.

    Args:
        start, end: read only these bytes of the stored file (None: to its end); of a compressed file, the streams
            that begin there.
        allow_foreign: also give the bytes of files of other formats.
    """
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
        if compression := compression_of(head):
            streams = decompress_streams(file, compression, start, end)
            chunks = (chunk for stream in streams for chunk in stream.chunks)
            if not start and not allow_foreign and (first := next(chunks, None)) is not None:
                foreign = None if isinstance(first, Gap) else foreign_format(first[:HEAD_BYTES])
                yield Gap(0, foreign) if foreign else first
                if foreign:
                    return
            yield from chunks
        elif not allow_foreign and (foreign := foreign_format(head)):
            yield from () if start else (Gap(0, foreign),)
        else:
            file.seek(start)
            while chunk := file.read(READ_BYTES if end is None else max(0, min(READ_BYTES, end - start))):
                start += len(chunk)
                yield chunk


def read_streams(path: str, start: int = 0, end: int | None = None) -> Iterator[Stream]:
    """The compressed streams of a file one by one; see `decompress_streams`. None for a file that is plain."""
    with open_file(path) as file:
        if compression := compression_of(file.read(HEAD_BYTES)):
            yield from decompress_streams(file, compression, start, end)


def to_utf8(chunks: Iterable[bytes | Gap]) -> Iterator[bytes | Gap]:
    """Pass UTF-8 through; transcode UTF-16 (recognised by its byte order mark or by `<` in two bytes) to UTF-8.

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
            if encoding := utf16_encoding(head):
                decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass") if decoder else chunk
    if not started and head:
        yield head


# -- tar archives --------------------------------------------------------------------------------------------

_CONTENT_BYTES = 1 << 12
"""Content is read in pieces of this size: where an archive is cut, tarfile gives nothing of the piece that is cut."""


def is_archive(path: str) -> bool:
    """Whether a file is a tar archive, whatever its name and compression."""
    head = b""
    for chunk in read_chunks(path, allow_foreign=True):
        if isinstance(chunk, Gap):
            return False
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    return is_tar(head)


def read_archive(path: str) -> Iterator[Stream | Gap]:
    """The regular files of an archive in their order, with offsets in the decompressed archive. Damage ends it with a
    Gap: after it no file can be recognised."""
    stream = _Archive(read_chunks(path, allow_foreign=True))
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=READ_BYTES) as archive:  # pyright: ignore[reportArgumentType,reportCallIssue]
            for member in archive:
                if member.isfile() and (content := archive.extractfile(member)) is not None:
                    yield Stream(member.offset_data, _read(content, stream))
                if stream.damage:
                    return
    except tarfile.TarError as error:
        stream.damage = stream.damage or Gap(stream.offset, f"tar archive damaged ({error})")
    if stream.damage:
        yield Gap(stream.offset, stream.damage.reason)


def _read(content: io.BufferedReader, stream: _Archive) -> Iterator[bytes | Gap]:  # pyright: ignore[reportInvalidTypeForm]
    try:
        while chunk := content.read(_CONTENT_BYTES):
            yield chunk
    except (tarfile.TarError, OSError) as error:
        stream.damage = stream.damage or Gap(stream.offset, f"tar archive truncated ({error})")
    if stream.damage:
        yield stream.damage


class _Archive:
    """Chunks as the file that tarfile reads; it ends at the first damage."""

    def __init__(self, chunks: Iterator[bytes | Gap]) -> None:
        self._chunks = chunks
        self._window = Window(self._next_chunk)
        self.offset = 0
        """Byte of the decompressed archive."""
        self.damage: Gap | None = None

    def _next_chunk(self) -> bytes:
        chunk = next(self._chunks, b"") if self.damage is None else b""
        if isinstance(chunk, Gap):
            self.damage, chunk = chunk, b""
        return chunk

    def read(self, size: int) -> bytes:
        data = self._window.get(self.offset, size)
        self.offset += len(data)
        self._window.forget(self.offset)
        return data
