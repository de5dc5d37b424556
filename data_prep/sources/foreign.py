"""Files of formats that no source reads, told by their first bytes, so that a reject says what to do with them."""

from __future__ import annotations

from data_prep.sources.decompression import compression_of

HEAD_BYTES = 512
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257
"""POSIX.1-1988 `ustar` header: the magic lies behind the name, mode, owner, size, time, checksum and link."""
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
