"""Wikipedia as dumps.wikimedia.org ships it: MediaWiki XML, plain, bzip2 (also multistream) or gzip.

The decompressed stream is cut into `<page>` elements first; mwxml then parses one page at a time. So every
document knows its exact bytes, memory stays bounded by the largest page, and a malformed page costs itself.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree.ElementTree import ParseError

import mwxml
from mwxml.element_iterator import ElementIterator
from mwxml.errors import MalformedXML
from pydantic import Field

from cluster.shards import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, SourceConfig, SourceFile, expand_patterns, whole_file
from data_prep.sources.elements import Between, Element, Flaw, cut_elements
from data_prep.sources.streams import read_chunks, to_utf8
from data_prep.sources.text import clean_text
from data_prep.sources.wikitext import ENGLISH_LINKS, HIDDEN_NAMESPACES, LinkRules, WikitextError, plain_text

ARTICLES = 0
"""The namespace of articles."""
_END = b"</mediawiki>"
_REDIRECT = re.compile(r"\s*#\s?\w+\s*:?\s*\[\[")
_XML_ERRORS = (ParseError, MalformedXML, ValueError, TypeError, AttributeError, AssertionError)
"""What mwxml raises on XML that is malformed, or well-formed but no page."""


class WikipediaDumpConfig(SourceConfig):
    """Articles of MediaWiki XML dumps."""

    kind: Literal["wikipedia_dump"] = "wikipedia_dump"
    paths: tuple[str, ...] = Field(min_length=1)
    """Dump files: local glob patterns or fsspec URIs."""
    max_page_bytes: int = Field(default=64 << 20, gt=0)
    """A longer page (bytes of XML) is rejected, and never held in memory."""


def list_files(config: WikipediaDumpConfig) -> list[SourceFile]:
    """All dump files, sorted by name. MissingInputError when a pattern matches nothing."""
    return expand_patterns(config.paths)


split = whole_file


def read(config: WikipediaDumpConfig, part: FilePart) -> Iterator[Document | Reject]:
    """The articles of one dump in its order. Redirects, other namespaces and pages without text are skipped.

    Offsets are of the decompressed stream; for a UTF-16 dump, of that stream as UTF-8.
    """
    file = part.file
    site = _Site()
    piece = None
    has_pages = False
    chunks = to_utf8(read_chunks(file.path))
    for piece in cut_elements(chunks, b"<page>", b"</page>", config.max_page_bytes):
        if isinstance(piece, Between):
            if piece.start == 0:
                site = _read_site(piece.head)
            continue
        if site.problem and not has_pages:
            yield Reject(file.name, 0, site.problem)
        has_pages = True
        result = _article(config, file, piece, site) if isinstance(piece, Element) else _reject(file, piece)
        if result is not None:
            yield result
    if isinstance(piece, Between):
        yield from _judge_end(file, piece, site, has_pages)


@dataclass(frozen=True, slots=True)
class _Site:
    """What a dump's header says."""

    namespaces: Mapping[str, Any] = field(default_factory=dict)
    """mwxml's namespaces by name; needed for pages that do not tell their namespace."""
    rules: LinkRules = ENGLISH_LINKS
    is_export: bool = False
    problem: str = ""


def _read_site(header: bytes) -> _Site:
    """Parse the part of a dump before its first page."""
    start = header.find(b"<mediawiki")
    if start < 0 or b"<siteinfo" not in header:
        return _Site(is_export=start >= 0)
    body = header[start:].split(_END)[0] + _END
    try:
        info = mwxml.Dump.from_file(io.BytesIO(body)).site_info
    except _XML_ERRORS as error:
        problem = f"malformed <siteinfo> ({error}); English namespace names are assumed"
        return _Site(is_export=True, problem=problem)
    namespaces = {space.name: space for space in info.namespaces or () if space.name}
    hidden = [name for name, space in namespaces.items() if space.id in HIDDEN_NAMESPACES]
    return _Site(namespaces, ENGLISH_LINKS.extended(hidden), is_export=True)


def _judge_end(file: SourceFile, rest: Between, site: _Site, has_pages: bool) -> Iterator[Reject]:
    """Tell a file that is no dump, and a dump that was cut between two pages."""
    if not site.is_export:
        if not has_pages:
            yield Reject(file.name, 0, "not a MediaWiki XML export: it has neither <mediawiki> nor <page>")
    elif _END not in rest.head and _END not in rest.tail:
        yield Reject(file.name, rest.end, "the file ends before </mediawiki>; later pages are missing")


def _reject(file: SourceFile, flaw: Flaw) -> Reject:
    return Reject(file.name, flaw.start, flaw.reason)


def _article(
    config: WikipediaDumpConfig, file: SourceFile, element: Element, site: _Site
) -> Document | Reject | None:
    """The page as a document; None when it is no article or shows no text."""
    try:
        page, wikitext = _parse_page(element.data, site.namespaces)
        if page.namespace != ARTICLES or page.redirect is not None or _REDIRECT.match(wikitext):
            return None
        text = plain_text(wikitext, site.rules)
    except WikitextError as error:
        return Reject(file.name, element.start, f"page {page.id}: {error}")
    except _XML_ERRORS as error:
        return Reject(file.name, element.start, f"malformed page: {error}")
    if not text:
        return None
    return Document(
        doc_id=f"{config.name}:{page.id}",
        source=config.name,
        uri=file.name,
        title=clean_text(page.title or ""),
        lang=config.lang,
        text=text,
        meta={"byte_start": element.start, "byte_end": element.end},
    )


def _parse_page(data: bytes, namespaces: Mapping[str, Any]) -> tuple[mwxml.Page, str]:
    """A `<page>` element's header and the wikitext of its last revision; "" when that is of another kind.

    Raises:
        Exception: one of _XML_ERRORS.
    """
    page = mwxml.Page.from_element(ElementIterator.from_file(io.BytesIO(data)), namespaces)
    if page.id is None:
        raise MalformedXML("it has no <id>")
    revisions = deque(page, maxlen=1)
    if not revisions:
        raise MalformedXML("it has no <revision>")
    last = revisions[0]
    return page, (last.text or "") if last.model in (None, "wikitext") else ""
