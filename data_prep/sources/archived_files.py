"""The files in a tar archive, plain or compressed, one after the other, bounded in memory."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.sources.decompression import READ_BYTES
from data_prep.sources.foreign import HEAD_BYTES, is_tar
from data_prep.sources.streams import Gap, read_chunks

_CONTENT_BYTES = 1 << 12
"""Content is read in pieces of this size: where an archive is cut, tarfile gives nothing of the piece that is cut."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A regular file in an archive."""

    name: str
    start: int
    """Byte of the decompressed archive at which its content begins."""
    chunks: Iterator[bytes | Gap]
    """Its content; a Gap comes last where the archive is damaged. To be read before the next file is asked for."""


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


def read_archive(path: str) -> Iterator[ArchivedFile | Gap]:
    """The regular files of an archive in their order. Damage ends it with a Gap, whose offset is a byte of the
    decompressed archive: behind it no file can be told."""
    stream = _Stream(read_chunks(path, allow_foreign=True))
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=READ_BYTES) as archive:  # pyright: ignore[reportArgumentType,reportCallIssue]
            for member in archive:
                if member.isfile() and (content := archive.extractfile(member)) is not None:
                    # Names that are no UTF-8 have surrogates, which no document may have.
                    name = os.fsencode(member.name).decode("utf-8", "backslashreplace")
                    yield ArchivedFile(name, member.offset_data, _read(content, stream))
                if stream.damage:
                    return
    except tarfile.TarError as error:
        stream.damage = stream.damage or Gap(stream.offset, f"tar archive damaged ({error})")
    if stream.damage:
        yield Gap(stream.offset, stream.damage.reason)


def _read(content: io.BufferedReader, stream: _Stream) -> Iterator[bytes | Gap]:  # pyright: ignore[reportInvalidTypeForm]
    try:
        while chunk := content.read(_CONTENT_BYTES):
            yield chunk
    except (tarfile.TarError, OSError) as error:
        stream.damage = stream.damage or Gap(stream.offset, f"tar archive truncated ({error})")
    if stream.damage:
        yield stream.damage


class _Stream:
    """Chunks as the file that tarfile reads; it ends at the first damage."""

    def __init__(self, chunks: Iterator[bytes | Gap]) -> None:
        self._chunks = chunks
        self._rest = b""
        self.offset = 0
        """Byte of the decompressed archive."""
        self.damage: Gap | None = None

    def read(self, size: int) -> bytes:
        pieces = [self._rest]
        length = len(self._rest)
        while length < size and self.damage is None and (chunk := next(self._chunks, None)) is not None:
            if isinstance(chunk, Gap):
                self.damage = chunk
                break
            pieces.append(chunk)
            length += len(chunk)
        data = b"".join(pieces)
        self._rest = data[size:]
        self.offset += min(size, len(data))
        return data[:size]
