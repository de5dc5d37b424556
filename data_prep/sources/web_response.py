"""What an archived web server answered: type, status, charset, and the body as its author wrote it."""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader, ZstdReader
from fastwarc.warc import HeaderMap

from data_prep.sources.warc_records import HEADER_BYTES

_READ_BYTES = 1 << 16
_HEADER_LINE_BYTES, _HEADER_LINES_BYTES = 8192, 32000
"""Longer lines of a header are left out, and those that do not fit into so many bytes: FastWARC refuses such
headers as a whole."""
_ZLIB_HEADER_CHECK = 31
"""RFC 1950, section 2.2: the first two bytes are a multiple of it."""
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")
_PARAMETERS = re.compile("[;,]")
"""Begins the parameters of a media type, or the next one of several."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_LOOKS_LIKE_HTML = re.compile(
    rb"[\xef\xbb\xbf\s]*(?:<\?xml[^>]{0,200}\?>\s*)?<(?:!doctype\s+html|html|head|body|!--)", re.IGNORECASE
)
_GZIP_MAGIC = b"\x1f\x8b\x08"


class BodyError(ValueError):
    """A body that cannot be decoded, or is longer than the limit."""


class _Reader(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Response:
    """A response, or a resource that was archived without its HTTP header."""

    status: int
    """HTTP status; 200 without an HTTP header."""
    media_type: str
    """In lower case without parameters: what the crawler identified, or else what the server declared."""
    charset: str | None
    codings: tuple[str, ...]
    """Transfer and content codings in the order in which they were applied."""
    payload: bytes
    """The body as it was sent."""

    def body(self, max_bytes: int) -> bytes:
        """The body without its codings.

        Raises:
            BodyError: it is longer than `max_bytes`, or damaged.
        """
        data = self.payload
        for coding in reversed(self.codings):
            if decode := _DECODERS.get(coding):
                try:
                    data = decode(data, max_bytes)
                except (OSError, zlib.error) as error:
                    # Archives are full of headers that speak of a coding which the crawler undid already.
                    if not _LOOKS_LIKE_HTML.match(data):
                        raise BodyError(f"no {coding} body: {error}") from error
        if data.startswith(_GZIP_MAGIC):  # compressed without a word about it
            with contextlib.suppress(OSError):
                data = _gunzip(data, max_bytes)
        if len(data) > max_bytes:
            raise BodyError(f"a body longer than the limit of {max_bytes} bytes")
        return data


def parse_headers(lines: bytes) -> HeaderMap:
    """A WARC or HTTP header with its first line, whatever its line ends."""
    headers = HeaderMap("utf-8")
    headers.parse(io.BytesIO(b"\r\n".join([*_lines_that_fit(lines), b"", b""])))
    return headers


def _lines_that_fit(header: bytes) -> Iterator[bytes]:
    room = _HEADER_LINES_BYTES
    for line in header.splitlines():
        if len(line) <= min(_HEADER_LINE_BYTES, room):
            room -= len(line) + 2
            yield line


def parse_response(record: HeaderMap, content: bytes) -> Response:
    """The response in a WARC record of type `response` or `resource`, given by its header and content."""
    identified = record.get("WARC-Identified-Payload-Type") or ""
    if not content.startswith(b"HTTP/"):
        declared = record.get("Content-Type") or ""
        return Response(200, _media_type(identified or declared, content), _charset(declared), (), content)
    end = _EMPTY_LINE.search(content, 0, HEADER_BYTES)
    headers = parse_headers(content[: end.start()] if end else content[:HEADER_BYTES])
    payload = content[end.end() :] if end else b""
    declared = headers.get("Content-Type") or ""
    codings = [*headers.get_multiple("Content-Encoding"), *headers.get_multiple("Transfer-Encoding")]
    names = tuple(name.strip().lower() for names in codings for name in names.split(","))
    media_type = _media_type(identified or declared, payload)
    return Response(headers.status_code or 0, media_type, _charset(declared), names, payload)


def _media_type(header: str, payload: bytes) -> str:
    """The type; of a page that nobody told the type of, what it looks like."""
    named = _PARAMETERS.split(header, maxsplit=1)[0].strip().lower()
    return named or ("text/html" if _LOOKS_LIKE_HTML.match(payload) else "")


def _charset(content_type: str) -> str | None:
    found = _CHARSET.search(content_type)
    return found.group(1) if found else None


def _read(reader: _Reader, max_bytes: int) -> bytes:
    """All that a reader gives, but of a body that is too long not much more than allowed."""
    pieces, size = [], 0
    while size <= max_bytes and (piece := reader.read(_READ_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """HTTP's `deflate` is zlib's format, and for some servers bare deflate (RFC 9110, section 8.4.1.2)."""
    has_header = len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % _ZLIB_HEADER_CHECK == 0
    return zlib.decompressobj(15 if has_header else -15).decompress(data, max_bytes + 1)


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    return _read(GzipReader(io.BytesIO(data)), max_bytes)


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = MappingProxyType(
    {
        "chunked": lambda data, max_bytes: _read(ChunkedReader(io.BytesIO(data)), max_bytes),
        "gzip": _gunzip,
        "x-gzip": _gunzip,
        "deflate": _inflate,
        "br": lambda data, max_bytes: _read(BrotliReader(io.BytesIO(data)), max_bytes),
        "zstd": lambda data, max_bytes: _read(ZstdReader(io.BytesIO(data)), max_bytes),
    }
)
"""Codings that are undone; others, such as `identity`, change nothing or mean nothing."""
