"""Opening source files: local paths and fsspec URIs, plain or compressed, as bounded chunks of plain bytes.

Damage inside a compressed file is data, not an exception: it comes out as a `Gap` at its place in the stream,
after every byte that could still be read and before what can be read again.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from cluster.artefacts.errors import MissingInputError, StorageError
from data_prep.sources.decompression import (
    READ_BYTES,
    CompressedStream,
    Gap,
    compression_of,
    decompress_streams,
)
from data_prep.sources.foreign import HEAD_BYTES, foreign_format

__all__ = ["Gap", "open_file", "read_chunks", "read_streams", "storage_of", "to_utf8"]


def open_file(path: str) -> BinaryIO:
    """Open a local path or fsspec URI for reading bytes.

    Raises:
        MissingInputError: the file is gone.
        StorageError: it may not be read.
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
    return compression.name if compression else _utf16_encoding(head) or "plain"


def read_chunks(
    path: str,
    *,
    start: int = 0,
    end: int | None = None,
    read_bytes: int = READ_BYTES,
    allow_foreign: bool = False,
) -> Iterator[bytes | Gap]:
    """The decompressed bytes of a file in chunks of bounded size, and the gaps between them.

    Compression is told by the first bytes of the file, not by its name. A file of several compressed streams
    (such as `pages-articles-multistream`, WARC files, zstd files of several frames) is resumed at the next stream
    after a damaged one. Of a file of a format that holds no plain text, such as a 7-Zip archive, only a gap is given.

    Args:
        start, end: read only these bytes of the stored file (None: to its end); of a compressed file, the streams
            that begin there.
        read_bytes: size of the chunks of a plain file.
        allow_foreign: give the bytes of files of other formats, too.
    """
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
        compression = compression_of(head)
        if compression:
            streams = decompress_streams(file, compression, start, end)
            chunks = (chunk for stream in streams for chunk in stream.chunks)
            yield from chunks if start or allow_foreign else _refuse_foreign(chunks)
        elif not allow_foreign and (foreign := foreign_format(head)):
            yield from () if start else (Gap(0, foreign),)
        else:
            yield from _read_plain(file, start, end, read_bytes)


def _refuse_foreign(chunks: Iterator[bytes | Gap]) -> Iterator[bytes | Gap]:
    """Decompressed chunks, or one gap where they are of a format that no source reads."""
    first = next(chunks, None)
    if first is None:
        return
    foreign = None if isinstance(first, Gap) else foreign_format(first[:HEAD_BYTES])
    yield Gap(0, foreign) if foreign else first
    if not foreign:
        yield from chunks


def _read_plain(file: BinaryIO, start: int, end: int | None, read_bytes: int) -> Iterator[bytes]:
    file.seek(start)
    while chunk := file.read(read_bytes if end is None else max(0, min(read_bytes, end - start))):
        start += len(chunk)
        yield chunk


def read_streams(path: str, start: int = 0, end: int | None = None) -> Iterator[CompressedStream]:
    """The compressed streams of a file one by one; see `decompress_streams`. None for a file that is plain."""
    with open_file(path) as file:
        if compression := compression_of(file.read(HEAD_BYTES)):
            yield from decompress_streams(file, compression, start, end)


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
