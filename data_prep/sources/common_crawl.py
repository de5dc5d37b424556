"""Common Crawl, CC-News and other web archives: WARC files (pages as they were sent) and WET files (their text)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastwarc.warc import HeaderMap
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import (
    FilePart,
    Skipped,
    SourceConfig,
    SourceFile,
    even_parts,
    expand_patterns,
)
from data_prep.sources.warc_records import RawRecord, is_record_by_record, read_records
from data_prep.sources.web_response import BodyError, Response, charset_of, parse_headers, parse_response
from data_prep.text import clean_text
from data_prep.text.encodings import decode_declared, decode_html
from data_prep.text.html import Page, PageError, read_page

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
    """A page with more elements inside each other is rejected; browsers stop there, too."""


def list_files(config: CommonCrawlConfig) -> Sequence[SourceFile]:
    """All files, sorted by name. MissingInputError when a pattern matches nothing.

    Raises:
        ConfigError: a pattern matches a WAT file.
    """
    files = expand_patterns(config.paths)
    for file in files:
        if file.name.lower().endswith(_WAT_ENDINGS):
            raise ConfigError(
                f"{file.path} is a WAT file: metadata of a crawl, without text.",
                next_step="name WARC or WET files alone in the source's `paths`, such as `DIR/**/*.warc.gz`",
            )
    return files


def split(config: CommonCrawlConfig, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The file in even parts; one part where it was compressed as a whole. Reads the first record only."""
    if is_record_by_record(file.path, config.max_record_bytes):
        return even_parts(file, size_bytes, part_bytes)
    return [FilePart(file)]


def read(config: CommonCrawlConfig, part: FilePart) -> Iterator[Document | Reject | Skipped]:
    """The pages of a part in its order. Records without a page or text are skipped and counted by their reason.

    `meta` holds `url`, `date` (as the archive has it), `byte_start` and `byte_end` of the record, and `stream_start`
    where a file is compressed record by record. There, rejects have the offset of the stored file.
    """
    for piece in read_records(part.file.path, part.start, part.end, config.max_record_bytes):
        if isinstance(piece, RawRecord):
            yield _read_record(config, part.file, piece)
        elif piece.beginning and isinstance(skipped := _open_record(piece.beginning), Skipped):
            yield skipped  # a film that is longer than the limit is no loss
        else:
            yield Reject(part.file.name, piece.offset, piece.reason)


@dataclass(frozen=True, slots=True)
class _Found:
    """A record that may hold text."""

    headers: HeaderMap
    response: Response | None
    """None: the record is text."""


def _open_record(record: RawRecord) -> _Found | Skipped:
    headers = parse_headers(record.header)
    kind = (headers.get("WARC-Type") or "").strip().lower()
    if kind == "conversion":
        is_text = (headers.get("Content-Type") or "").lower().startswith("text/plain")
        return _Found(headers, None) if is_text else Skipped("not_text")
    if kind not in ("response", "resource"):
        return Skipped(kind if kind in _OTHER_TYPES else "unknown")
    response = parse_response(headers, record.content)
    if response.media_type not in _HTML:
        return Skipped("not_html")
    return _Found(headers, response) if 200 <= response.status < 300 else Skipped("not_successful")


def _read_record(
    config: CommonCrawlConfig, file: SourceFile, record: RawRecord
) -> Document | Reject | Skipped:
    found = _open_record(record)
    if isinstance(found, Skipped):
        return found
    try:
        page = _read_found(config, found, record)
    except UnicodeDecodeError as error:
        return _reject(file, record, f"invalid UTF-8 at byte {error.start} of the content")
    except (BodyError, PageError) as error:
        return _reject(file, record, str(error))
    if not page.text:
        return Skipped("no_text")
    return Document(
        doc_id=f"{config.name}:{_record_id(found.headers, file, record)}",
        source=config.name,
        uri=file.name,
        title=page.title,
        lang=config.lang,
        text=page.text,
        meta=_meta(found.headers, record),
    )


def _read_found(config: CommonCrawlConfig, found: _Found, record: RawRecord) -> Page:
    if found.response is None:
        if len(record.content) > config.max_page_bytes:
            raise BodyError(f"a text longer than the limit of {config.max_page_bytes} bytes")
        text = decode_declared(record.content, charset) if (charset := charset_of(found.headers)) else None
        return Page("", clean_text(record.content.decode("utf-8") if text is None else text))
    html = decode_html(found.response.body(config.max_page_bytes), found.response.charset, config.lang)
    return read_page(html, main_content=config.extraction == "main", max_depth=config.max_page_depth)


def _record_id(headers: HeaderMap, file: SourceFile, record: RawRecord) -> str:
    """The record's own id, `urn:uuid:...`; its place, if it has none."""
    place = f"{file.name}#{record.start if record.stream_start is None else record.stream_start}"
    if record.stream_start is not None and record.start:
        place += f"+{record.start}"
    return clean_text(headers.get("WARC-Record-ID") or "").strip("<> \n") or place


def _meta(headers: HeaderMap, record: RawRecord) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "url": clean_text(headers.get("WARC-Target-URI") or "").strip("<> \n"),
        "date": clean_text(headers.get("WARC-Date") or ""),
        "byte_start": record.start,
        "byte_end": record.end,
    }
    return meta if record.stream_start is None else meta | {"stream_start": record.stream_start}


def _reject(file: SourceFile, record: RawRecord, reason: str) -> Reject:
    return Reject(file.name, record.start if record.stream_start is None else record.stream_start, reason)
