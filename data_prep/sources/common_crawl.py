"""Common Crawl, CC-News and other web archives: WARC files (pages as they were sent) and WET files (their text)."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from fastwarc.stream_io import BrotliReader, ZstdReader
from fastwarc.warc import HeaderMap
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from data_prep.document import Document
from data_prep.sources.base import Item, Skipped, SourceConfig, SourceFile
from data_prep.sources.decompression import Gap
from data_prep.sources.warc_records import HEADER_BYTES, RawRecord, is_record_by_record, read_records
from data_prep.text import UnreadableError, clean_text
from data_prep.text.encodings import decode_declared, decode_html
from data_prep.text.html import Page, read_page

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_OTHER_TYPES = frozenset({"warcinfo", "request", "metadata", "revisit", "continuation"})
_WAT_ENDINGS = (".wat", ".wat.gz", ".wat.zst")


class CommonCrawlConfig(SourceConfig):
    """Pages of web archives."""

    kind: Literal["common_crawl"] = "common_crawl"
    paths: tuple[str, ...] = Field(min_length=1)
    """WARC or WET files, plain, .gz or .zst: local glob patterns or fsspec URIs."""
    extraction: Literal["main", "all"] = "main"
    """The part of a page that is taken: its article without headline (which is in the title), byline, captions, teasers
    and comments, and of other pages all but navigation; or all that a page shows."""
    max_record_bytes: int = Field(default=16 << 20, gt=0)
    """A longer record (bytes, decompressed) is rejected if it is a page, and never held in memory."""
    max_page_bytes: int = Field(default=5 << 20, gt=0)
    """A longer page (bytes, without its content encoding) is rejected. Common Crawl itself cuts at 5 MiB."""
    max_page_depth: int = Field(default=512, gt=0)
    """A page with deeper nesting is rejected; browsers have the same limit."""

    def list_files(self) -> Sequence[SourceFile]:
        files = super().list_files()
        for file in files:
            if file.name.lower().endswith(_WAT_ENDINGS):
                raise ConfigError(
                    f"{file.path} is a WAT file: metadata of a crawl, without text.",
                    next_step="name WARC or WET files alone in the source's `paths`, such as `DIR/**/*.warc.gz`",
                )
        return files

    def is_divisible(self, file: SourceFile) -> bool:
        """Whether it was not compressed as a whole. Reads the first record only."""
        return is_record_by_record(file.path, self.max_record_bytes)

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The pages of a part in its order. Records without a page or text are skipped and counted by their reason.

        `meta` holds `url`, `date` (as the archive has it), `byte_start` and `byte_end` of the record, and
        `stream_start` where a file is compressed record by record. There, rejects have the offset of the stored file.
        """
        for piece in read_records(part.path, part.start, part.end, self.max_record_bytes):
            yield self._document(part, piece) if isinstance(piece, RawRecord) else piece

    def _document(self, file: SourceFile, record: RawRecord) -> Document | Gap | Skipped:
        found = _open_record(record)
        if isinstance(found, Skipped):
            return found
        # Records that are no pages were passed over above: a film longer than the limit is no loss.
        if record.problem:
            return Gap(record.stored_start, record.problem)
        headers, response = found
        try:
            page = self._page(headers, response, record.content)
        except UnicodeDecodeError as error:
            return Gap(record.stored_start, f"invalid UTF-8 at byte {error.start} of the content")
        except UnreadableError as error:
            return Gap(record.stored_start, str(error))
        meta: dict[str, Any] = {
            "url": clean_text(headers.get("WARC-Target-URI") or "").strip("<> \n"),
            "date": clean_text(headers.get("WARC-Date") or ""),
            "byte_start": record.start,
            "byte_end": record.end,
        }
        place = f"{file.name}#{record.stored_start}"
        if record.stream_start is not None:
            meta["stream_start"] = record.stream_start
            place += f"+{record.start}" if record.start else ""
        own_id = clean_text(headers.get("WARC-Record-ID") or "").strip("<> \n")
        return self.document(file, own_id or place, page.text, meta, title=page.title)

    def _page(self, headers: HeaderMap, response: Response | None, content: bytes) -> Page:
        if response is not None:
            html = decode_html(response.body(self.max_page_bytes), response.charset, self.lang)
            return read_page(html, main_content=self.extraction == "main", max_depth=self.max_page_depth)
        if len(content) > self.max_page_bytes:
            raise UnreadableError(f"a text longer than the limit of {self.max_page_bytes} bytes")
        text = decode_declared(content, charset) if (charset := charset_of(headers)) else None
        return Page("", clean_text(content.decode("utf-8") if text is None else text))


def _open_record(record: RawRecord) -> tuple[HeaderMap, Response | None] | Skipped:
    """The header of a record that may hold text, and the response in it; None where the record itself is text."""
    headers = parse_headers(record.header)
    kind = (headers.get("WARC-Type") or "").strip().lower()
    if kind == "conversion":
        is_text = (headers.get("Content-Type") or "").lower().startswith("text/plain")
        return (headers, None) if is_text else Skipped("not_text")
    if kind not in ("response", "resource"):
        return Skipped(kind if kind in _OTHER_TYPES else "unknown")
    response = parse_response(headers, record.content)
    if response.media_type not in _HTML:
        return Skipped("not_html")
    return (headers, response) if 200 <= response.status < 300 else Skipped("not_successful")


# -- what a web server sent ----------------------------------------------------------------------------------

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
_GZIP_FORMAT, _ZLIB_FORMAT, _BARE_DEFLATE = 31, 15, -15
_CHUNK_SIZE = re.compile(rb"[ \t]*(?=[0-9A-Fa-f])0*([0-9A-Fa-f]{0,15})[ \t]*(?:;[^\n]{0,65536})?\r?\n")
"""The line before a chunk: its size, maybe with extensions (RFC 9112, section 7.1.1). Line feeds may stand alone
(section 2.2)."""
_LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True, slots=True)
class Response:
    """A response, or a resource that was archived without its HTTP header."""

    status: int
    """HTTP status; 200 without an HTTP header."""
    media_type: str
    """In lower case without parameters: what the crawler identified, or else what the server declared."""
    charset: str | None
    codings: tuple[str, ...]
    """Transfer and content codings in the order of their application."""
    payload: bytes
    """The body as it was sent."""

    def body(self, max_bytes: int) -> bytes:
        """The body without its codings.

        Raises:
            UnreadableError: it is longer than `max_bytes`, damaged, or cut short within a coding. Nothing is taken of
                such a body: where its bytes end, so may a word, or a character.
        """
        data = self.payload
        for coding in reversed(self.codings):
            if data and (decode := _DECODERS.get(coding)):
                try:
                    data = decode(data, max_bytes)
                except (OSError, zlib.error) as error:
                    # Archives are full of headers that name a coding which the crawler has undone already.
                    if not _LOOKS_LIKE_HTML.match(data):
                        raise UnreadableError(f"no {coding} body: {error}") from error
        if data.startswith(_GZIP_MAGIC):  # compressed without a word about it
            try:
                data = _gunzip(data, max_bytes)
            except (OSError, zlib.error) as error:
                raise UnreadableError(f"no gzip body: {error}") from error
        if len(data) > max_bytes:
            raise UnreadableError(f"a body longer than the limit of {max_bytes} bytes")
        return data


def parse_headers(header: bytes) -> HeaderMap:
    """A WARC or HTTP header with its first line, whatever its line ends."""
    lines, room = [], _HEADER_LINES_BYTES
    for line in header.splitlines():
        if len(line) <= min(_HEADER_LINE_BYTES, room):
            room -= len(line) + 2
            lines.append(line)
    headers = HeaderMap("utf-8")
    headers.parse(io.BytesIO(b"\r\n".join([*lines, b"", b""])))
    return headers


def parse_response(record: HeaderMap, content: bytes) -> Response:
    """The response in a WARC record of type `response` or `resource`, given by its header and content."""
    identified = record.get("WARC-Identified-Payload-Type") or ""
    if not content.startswith(b"HTTP/"):
        declared = record.get("Content-Type") or ""
        return Response(200, _media_type(identified or declared, content), charset_of(record), (), content)
    end = _EMPTY_LINE.search(content, 0, HEADER_BYTES)
    headers = parse_headers(content[: end.start()] if end else content[:HEADER_BYTES])
    payload = content[end.end() :] if end else b""
    declared = headers.get("Content-Type") or ""
    codings = [*headers.get_multiple("Content-Encoding"), *headers.get_multiple("Transfer-Encoding")]
    names = tuple(name.strip().lower() for names in codings for name in names.split(","))
    media_type = _media_type(identified or declared, payload)
    return Response(headers.status_code or 0, media_type, charset_of(headers), names, payload)


def _media_type(header: str, payload: bytes) -> str:
    """The media type; guessed from the contents if the server did not give it."""
    named = _PARAMETERS.split(header, maxsplit=1)[0].strip().lower()
    return named or ("text/html" if _LOOKS_LIKE_HTML.match(payload) else "")


def charset_of(headers: HeaderMap) -> str | None:
    """The charset that a header declares."""
    found = _CHARSET.search(headers.get("Content-Type") or "")
    return found.group(1) if found else None


def _read(reader: Any, max_bytes: int) -> bytes:
    """All that a reader gives, but of a body that is too long not much more than allowed."""
    pieces, size = [], 0
    while size <= max_bytes and (piece := reader.read(_READ_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _unchunk(data: bytes, max_bytes: int) -> bytes:
    """The chunks of a body, joined (RFC 9112, section 7.1); what follows the last one is ignored."""
    pieces, size, position = [], 0, 0
    while head := _CHUNK_SIZE.match(data, position):
        start, length = head.end(), int(head.group(1) or b"0", 16)
        if not length or size > max_bytes:
            return b"".join(pieces)
        line_end = _LINE_END.match(data, start + length)
        if not line_end:
            break
        pieces.append(data[start : start + length])
        size, position = size + length, line_end.end()
    raise OSError(f"cut short or damaged, no whole chunk at byte {position}")


def _inflate(data: bytes, max_bytes: int) -> bytes:
    """HTTP's `deflate` is zlib's format, and for some servers raw deflate (RFC 9110, section 8.4.1.2)."""
    has_header = len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % _ZLIB_HEADER_CHECK == 0
    return _one_stream(data, _ZLIB_FORMAT if has_header else _BARE_DEFLATE, max_bytes)[0]


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    """All members of a gzip body; what follows them and is none is ignored, as browsers do."""
    pieces, size = [], 0
    while (not pieces or data.startswith(_GZIP_MAGIC)) and size <= max_bytes:
        piece, data = _one_stream(data, _GZIP_FORMAT, max_bytes - size)
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _one_stream(data: bytes, window_bits: int, max_bytes: int) -> tuple[bytes, bytes]:
    """The decompressed bytes of a zlib stream, little more than allowed, and the bytes after it."""
    stream = zlib.decompressobj(window_bits)
    output = stream.decompress(data, max_bytes + 1)
    if not stream.eof and len(output) <= max_bytes:
        raise OSError(f"cut short after {len(output)} decompressed bytes")
    return output, stream.unused_data


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = MappingProxyType(
    {
        "chunked": _unchunk,
        "gzip": _gunzip,
        "x-gzip": _gunzip,
        "deflate": _inflate,
        "br": lambda data, max_bytes: _read(BrotliReader(io.BytesIO(data)), max_bytes),
        "zstd": lambda data, max_bytes: _read(ZstdReader(io.BytesIO(data)), max_bytes),
    }
)
"""Codings that are undone; others, such as `identity`, change nothing or mean nothing."""
