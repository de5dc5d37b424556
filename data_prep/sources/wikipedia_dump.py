"""Wikipedia as dumps.wikimedia.org ships it: MediaWiki XML, plain, bzip2 (also multistream), gzip or xz.

The decompressed stream is cut into `<page>` elements first; mwxml then parses one page at a time. So every
document knows its exact bytes, memory stays bounded by the largest page, and a malformed page costs itself.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from xml.etree.ElementTree import ParseError

import mwxml
from mwxml.errors import MalformedXML
from pydantic import Field

from cluster.artefacts.errors import MissingInputError
from data_prep.document import Document
from data_prep.sources.base import Item, LeftOut, Skipped, SourceConfig, SourceFile
from data_prep.sources.books import primary_language
from data_prep.sources.elements import Between, Element, cut_elements
from data_prep.sources.streams import Gap, read_chunks, read_streams, storage_of, to_utf8
from data_prep.text import UnreadableError, clean_text
from data_prep.text.wiki_page import (
    ENGLISH_LINKS,
    HIDDEN_NAMESPACES,
    MEDIA_NAMESPACE,
    LinkRules,
    Page,
    is_disambiguation,
)
from data_prep.text.wikitext import plain_text

# -- the header of a dump ------------------------------------------------------------------------------------

HEADER_BYTES = 1 << 20
"""A dump's first page begins before this byte (decompressed, as UTF-8)."""
XML_ERRORS = (ParseError, MalformedXML, ValueError, TypeError, AttributeError, AssertionError)
"""Errors of mwxml on XML that is malformed or has another schema."""
_LANGUAGES = (
    re.compile(rb"<mediawiki\b[^>]*?\sxml:lang=[\"']([A-Za-z]{2,3}\b)"),
    re.compile(rb"<dbname>\s*([a-z]{2,3})(?:_[a-z_]+)?wik"),
    re.compile(rb"<base>\s*https?://([a-z]{2,3})(?:-[a-z-]+)?\.wik"),
)
_OPENING, _CLOSING, _END = b"<page>", b"</page>", b"</mediawiki>"
_NO_HEADER = b"<mediawiki><siteinfo/>"


@dataclass(frozen=True, slots=True)
class Site:
    """The wiki that a dump was taken from."""

    opening: bytes = _NO_HEADER
    """Everything before the first page, in one line; pages that do not state their namespace need it."""
    rules: LinkRules = ENGLISH_LINKS
    lang: str = "en"
    """ISO 639 code of its language: what `xml:lang` states, or else its name (`itwiki`) or address."""
    is_export: bool = True
    """False for a file that is no dump."""
    problem: str = ""
    """Why the namespaces are not known, where they should be."""


def read_site(path: str) -> Site:
    """Read the header of a dump, which lies before its first page.

    So every part of a dump can be rendered by the same rules. A compressed file whose beginning is damaged is
    seen as a dump without header.
    """
    header = b""
    for chunk in to_utf8(read_chunks(path)):
        if isinstance(chunk, Gap):
            return Site()
        header += chunk
        if _OPENING in header or len(header) > HEADER_BYTES:
            break
    header, page, _ = header.partition(_OPENING)
    start = header.find(b"<mediawiki")
    named = next(filter(None, (pattern.search(header) for pattern in _LANGUAGES)), None)
    lang = primary_language(named.group(1).decode()) if named else "en"
    if start < 0 or b"<siteinfo" not in header:
        return Site(lang=lang, is_export=start >= 0 or bool(page))
    opening = b" ".join(header[start:].split(_END)[0].split())
    try:
        info = mwxml.Dump.from_file(io.BytesIO(opening + _END)).site_info
    except XML_ERRORS as error:
        problem = f"malformed <siteinfo> ({error}); English namespace names are assumed"
        return Site(lang=lang, problem=problem if page else "")
    ids = {space.name: space.id for space in info.namespaces or () if space.name}
    hidden = [name for name, number in ids.items() if number in HIDDEN_NAMESPACES]
    media = [name for name, number in ids.items() if number == MEDIA_NAMESPACE]
    return Site(opening, ENGLISH_LINKS.extended(hidden, media), lang)


ARTICLES = 0
"""The namespace of articles."""
_OTHER_NAMESPACE, _IS_REDIRECT = Skipped("other_namespace"), Skipped("redirect")
logging.getLogger("mwxml").setLevel(logging.ERROR)  # it reports each element that it skips, page by page
_INDEX_NAME = re.compile(r"-multistream-index\d*\.txt[^/]*$")
_SECOND_STREAM_BYTES = 4 << 20
"""How far into a file a second bzip2 stream is looked for. A hundred pages, compressed, are about a megabyte."""
_NAMESPACE = re.compile(rb"<ns>(-?\d{1,9})</ns>")
_REDIRECT = re.compile(r"\s*[#＃]\s?\w+\s*:?\s*\[\[")


class WikipediaDumpConfig(SourceConfig):
    """Articles of MediaWiki XML dumps."""

    kind: Literal["wikipedia_dump"] = "wikipedia_dump"
    lang: str | None = None
    """ISO 639-1 code of the text; null takes the one that the dump states, or else `en`."""
    paths: tuple[str, ...] = Field(min_length=1)
    """Dump files: local glob patterns or fsspec URIs."""
    disambiguation: Literal["drop", "keep"] = "drop"
    """Disambiguation pages, recognised by their templates in many languages."""
    math: Literal["drop", "keep"] = "drop"
    """Formulas: left out, or kept as their TeX source between dollar signs."""
    max_page_bytes: int = Field(default=64 << 20, gt=0)
    """A longer page (bytes of XML) is rejected, and never held in memory."""

    def list_files(self) -> list[SourceFile]:
        """All dump files, without the indexes that lie beside multistream dumps."""
        dumps = [file for file in super().list_files() if not _INDEX_NAME.search(file.name)]
        if not dumps:
            raise MissingInputError(
                f"{', '.join(self.paths)}: only indexes of dumps, and no dump.",
                next_step="name the dump itself, such as `*-pages-articles-multistream.xml.bz2`",
            )
        return dumps

    def is_divisible(self, file: SourceFile) -> bool:
        """Whether it is plain XML or multistream bzip2.

        The index of a multistream dump is not needed: a stream is recognised anywhere by its ten first bytes.
        """
        return storage_of(file.path) == "plain" or is_multistream(file.path)

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The articles of a part in their order. Redirects, other namespaces, disambiguation pages and pages
        without text are skipped. Templates that nothing is known to show for are left out of sentences, and counted.

        Offsets are of the decompressed file, for a UTF-16 dump of that as UTF-8. In a multistream dump they are of
        the decompressed stream, which `stream_start` and the reasons of rejects name.
        """
        path = part.path
        site = read_site(path)
        if not site.is_export:
            if part.start == 0:
                yield Gap(0, "not a MediaWiki XML export: it has neither <mediawiki> nor <page>")
            return
        if part.start == 0 and site.problem:
            yield Gap(0, site.problem)
        reader = _Reader(self, part, site)
        reads_to_end = True
        if is_multistream(path):
            for stream in read_streams(path, part.start, part.end):
                reader.stream_start = stream.start
                yield from reader.read(stream.chunks)
            reads_to_end = part.end is None or next(read_streams(path, part.end), None) is None
        else:
            # The cutter wants to see the byte before the part.
            chunks = to_utf8(read_chunks(path, start=max(0, part.start - 1)))
            yield from reader.read(chunks, part.start, part.end)
        if reads_to_end and reader.unclosed_at is not None:
            yield reader.gap(reader.unclosed_at, "the file ends before </mediawiki>; later pages are missing")
        if reader.dropped_templates:
            yield LeftOut("templates", reader.dropped_templates)


def is_multistream(path: str) -> bool:
    """Whether a dump consists of bzip2 streams of whole pages, as `pages-articles-multistream` does.

    Told by the first two streams after the header. Other programs cut streams anywhere (pbzip2); such a file is
    read as if it were one stream.
    """
    if storage_of(path) != "bzip2":
        return False
    starts: list[bytes] = []
    for stream in read_streams(path, 1, _SECOND_STREAM_BYTES):
        texts = (chunk.lstrip() for chunk in stream.chunks if not isinstance(chunk, Gap))
        starts += itertools.islice(filter(None, texts), 1)
        if len(starts) == 2:
            break
    return bool(starts) and all(start.startswith((_OPENING, _END)) for start in starts)


class _Reader:
    """Pages to documents, and whether the dump was closed after the last of them."""

    def __init__(self, config: WikipediaDumpConfig, file: SourceFile, site: Site) -> None:
        self._config, self._file, self._site = config, file, site
        self._is_closed = False
        self.unclosed_at: int | None = None
        """End of a dump that was cut between two pages; None where more follows."""
        self._lang = config.lang or site.lang
        self.stream_start: int | None = None
        self.dropped_templates: Counter[str] = Counter()

    def read(self, chunks: Iterable[bytes | Gap], start: int = 0, end: int | None = None) -> Iterator[Item]:
        limit = self._config.max_page_bytes
        for piece in cut_elements(chunks, _OPENING, _CLOSING, limit, start=start, end=end):
            if isinstance(piece, Between):
                self._is_closed |= _END in piece.head or _END in piece.tail
                self.unclosed_at = piece.end if piece.at_end and not self._is_closed else None
                continue
            self._is_closed, self.unclosed_at = False, None
            if isinstance(piece, Element):
                yield self._article(piece)
            else:
                yield self.gap(piece.byte_offset, piece.reason)

    def gap(self, offset: int, reason: str) -> Gap:
        where = "" if self.stream_start is None else f" (in the bzip2 stream at byte {self.stream_start})"
        return Gap(offset, reason + where)

    def _article(self, element: Element) -> Document | Gap | Skipped:
        """The page as a document; Skipped when it is no article or shows no text."""
        config, site = self._config, self._site
        if skipped := _skip_if_no_article(element.data):
            return skipped
        try:
            page, wikitext, saved = _parse_page(element.data, site.opening)
            if page.namespace != ARTICLES:
                return _OTHER_NAMESPACE
            if page.redirect is not None or _REDIRECT.match(wikitext):
                return _IS_REDIRECT
            if config.disambiguation == "drop" and is_disambiguation(wikitext):
                return Skipped("disambiguation")
            text = plain_text(
                wikitext,
                site.rules,
                page=Page(page.title or "", self._lang, saved),
                keep_formulas=config.math == "keep",
                dropped=self.dropped_templates,
            )
        except UnreadableError as error:
            return self.gap(element.start, f"page {page.id}: {error}")
        except XML_ERRORS as error:
            return self.gap(element.start, f"malformed page: {error}")
        meta = {"byte_start": element.start, "byte_end": element.end}
        if self.stream_start is not None:
            meta["stream_start"] = self.stream_start
        title = clean_text(page.title or "")
        return config.document(self._file, str(page.id), text, meta, title=title, lang=self._lang)


def _skip_if_no_article(page: bytes) -> Skipped | None:
    """Skip most redirects and pages of other namespaces without parsing them; they are over half of a dump."""
    header = page[: page.find(b"<revision>")]
    namespace = _NAMESPACE.search(header)
    if namespace is not None and int(namespace.group(1)) != ARTICLES:
        return _OTHER_NAMESPACE
    return _IS_REDIRECT if b"<redirect " in header else None


def _parse_page(data: bytes, opening: bytes) -> tuple[mwxml.Page, str, datetime | None]:
    """A `<page>` element's header, the wikitext of its last revision ("" when that is of another kind), and when
    that was saved.

    Raises:
        Exception: one of XML_ERRORS.
    """
    # A header with all namespaces takes twice the time of a short page.
    before = _NO_HEADER if _NAMESPACE.search(data) else opening
    page = next(mwxml.Dump.from_file(io.BytesIO(before + data + _END)).pages)
    if page.id is None:
        raise MalformedXML("it has no <id>")
    revisions = deque(page, maxlen=1)
    if not revisions:
        raise MalformedXML("it has no <revision>")
    last = revisions[0]
    wikitext = (last.text or "") if last.model in (None, "wikitext") else ""
    saved = None if last.timestamp is None else datetime.fromisoformat(last.timestamp.long_format())
    return page, wikitext, saved
