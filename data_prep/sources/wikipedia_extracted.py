"""Wikipedia as others extract it from dumps: WikiExtractor, and Wikimedia Enterprise.

WikiExtractor writes files of `<doc id= url= title=>` blocks, one article each. Wikimedia Enterprise ships a JSON line
per article with the HTML that readers see: templates are expanded there, which no dump of wikitext can offer. Its files
are read as they are published (`enwiki-NS0-20240101-ENTERPRISE-HTML.json.tar.gz`, one or several archived files of JSON
lines) or unpacked; see https://enterprise.wikimedia.com/docs/data-dictionary/ for the fields.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from data_prep.document import Document
from data_prep.sources.base import NO_TEXT, Item, Skipped, SourceConfig, SourceFile
from data_prep.sources.books import primary_language
from data_prep.sources.elements import Element, cut_elements
from data_prep.sources.records import (
    MAX_LINE_BYTES,
    MISSING,
    parse_lines,
    read_lines,
    split_lines,
    value_at,
)
from data_prep.sources.streams import Gap, is_archive, read_archive, read_chunks, storage_of
from data_prep.text import UnreadableError, clean_text
from data_prep.text.wiki_html import article_text, is_disambiguation_page
from data_prep.text.wikitext import strip_tags

_OPENING, _CLOSING = b"<doc ", b"</doc>"
"""They count at line starts only: an article on markup may well show `<doc>` within a line."""
_HEADER = re.compile(r'<doc id="([^"]*)"(?: [a-z]+="[^"]*")* title="(.*?)"(?: [a-z]+="[^"]*")*>')
"""WikiExtractor does not escape quotes in titles; of old, `nonfiltered` and other attributes followed the title."""
_ADDRESS = re.compile(r' url="https?://([a-z]{2,3})\.(?:m\.)?wik')
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")


class WikipediaExtractedConfig(SourceConfig):
    """Articles that WikiExtractor took from a dump."""

    kind: Literal["wikipedia_extracted"] = "wikipedia_extracted"
    lang: str | None = None
    """ISO 639-1 code of the text; null takes the one in the address of an article, or else `en`."""
    paths: tuple[str, ...] = Field(min_length=1)
    """Files of `<doc>` blocks, plain, .bz2, .gz, .xz or .zst: local glob patterns or fsspec URIs."""
    max_block_bytes: int = Field(default=64 << 20, gt=0)
    """A longer block (bytes) is rejected, and never held in memory."""

    def is_divisible(self, file: SourceFile) -> bool:
        return storage_of(file.path) == "plain"

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The articles of a part in their order. Blocks without text below their title are skipped.

        Offsets are of the decompressed stream, from the `<` of `<doc` to after `</doc>`.
        """
        # The cutter wants to see the byte before the part.
        chunks = read_chunks(part.path, start=max(0, part.start - 1))
        for piece in cut_elements(
            chunks,
            _OPENING,
            _CLOSING,
            self.max_block_bytes,
            at_line_start=True,
            start=part.start,
            end=part.end,
        ):
            if isinstance(piece, Element):
                yield self._article(part, piece)
            elif isinstance(piece, Gap):
                yield piece
            elif stray := piece.head.lstrip():
                shown = stray[:40].decode("utf-8", "replace")
                start = piece.start + len(piece.head) - len(stray)
                yield Gap(start, f"text outside of <doc> blocks: {shown!r}")

    def _article(self, file: SourceFile, block: Element) -> Document | Gap | Skipped:
        try:
            text = block.data.decode("utf-8")
        except UnicodeDecodeError as error:
            return Gap(block.start, f"invalid UTF-8 at byte {block.start + error.start}")
        header, _, body = text.partition("\n")
        found = _HEADER.fullmatch(header.rstrip())
        if found is None:
            return Gap(block.start, f"malformed block header: {header[:80]!r}")
        title = _unescape(found.group(2))
        address = _ADDRESS.search(header)
        body = clean_text(_unescape(strip_tags(body.removesuffix("</doc>"))))
        first, _, rest = body.partition("\n")
        if first.strip() == title.strip():  # WikiExtractor repeats it
            body = rest.lstrip("\n")
        meta = {"byte_start": block.start, "byte_end": block.end}
        lang = self.lang or (address.group(1) if address else "en")
        return self.document(file, found.group(1), body, meta, title=clean_text(title), lang=lang)


def _unescape(text: str) -> str:
    """Resolve entities that end in a semicolon; `AT&T` and `&copy=1` in a URL stay as they are."""
    return _ENTITY.sub(lambda entity: html.unescape(entity.group()), text) if "&" in text else text


# -- Wikimedia Enterprise ------------------------------------------------------------------------------------

ARTICLES = 0
"""The namespace of articles."""


class WikipediaHtmlConfig(SourceConfig):
    """Articles of Wikimedia Enterprise's HTML dumps."""

    kind: Literal["wikipedia_html"] = "wikipedia_html"
    lang: str | None = None
    """ISO 639-1 code of the text; null takes the one that each article states, or else `en`."""
    paths: tuple[str, ...] = Field(min_length=1)
    """Files of JSON lines, plain, compressed or in tar archives (also compressed): local glob patterns or fsspec URIs.
    An archive is one task, however long; plain files are shared out."""
    disambiguation: Literal["drop", "keep"] = "drop"
    """Disambiguation pages."""
    math: Literal["drop", "keep"] = "drop"
    """Formulas: left out, or kept as their TeX source between dollar signs."""
    max_line_bytes: int = Field(default=MAX_LINE_BYTES, gt=0)
    """A longer line (bytes) is rejected, and never held in memory."""
    max_page_depth: int = Field(default=512, gt=0)
    """A page with deeper nesting is rejected; browsers have the same limit."""

    def is_divisible(self, file: SourceFile) -> bool:
        """Whether it is neither compressed nor an archive."""
        return not is_archive(file.path) and storage_of(file.path) == "plain"

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The articles of a part in order. Pages of other namespaces, disambiguation pages and pages without text are
        skipped; a line that is no article is rejected, and only that line.

        Offsets are of the decompressed file; of an archive, of the decompressed archive.
        """
        for item in parse_lines(self._lines(part)):
            yield item if isinstance(item, Gap) else self._article(part, *item)

    def _lines(self, part: SourceFile) -> Iterator[tuple[int, bytes] | Gap]:
        if part.start or not is_archive(part.path):
            yield from read_lines(part, self.max_line_bytes)
            return
        for member in read_archive(part.path):
            if isinstance(member, Gap):
                yield member
            else:
                yield from split_lines(member.chunks, self.max_line_bytes, member.start)

    def _article(self, file: SourceFile, start: int, end: int, record: Any) -> Document | Gap | Skipped:
        page, page_id = value_at(record, "article_body.html"), value_at(record, "identifier")
        if page is MISSING or not isinstance(page, str | None):
            return Gap(start, "no article: it has no string in `article_body.html`")
        if not isinstance(page_id, int | str) or isinstance(page_id, bool) or page_id == "":
            return Gap(start, "no article: it has no `identifier`")
        if value_at(record, "namespace.identifier") not in (MISSING, None, ARTICLES):
            return Skipped("other_namespace")
        if not page:
            return NO_TEXT
        if self.disambiguation == "drop" and is_disambiguation_page(page):
            return Skipped("disambiguation")
        try:
            text = article_text(page, keep_formulas=self.math == "keep", max_depth=self.max_page_depth)
        except UnreadableError as error:
            return Gap(start, f"page {page_id}: {error}")
        stated = _string(record, "in_language.identifier") or _string(
            record, "is_part_of.in_language.identifier"
        )
        meta = {"byte_start": start, "byte_end": end, "url": clean_text(_string(record, "url"))}
        title, lang = clean_text(_string(record, "name")), self.lang or primary_language(stated) or "en"
        return self.document(file, str(page_id), text, meta, title=title, lang=lang)


def _string(record: Any, field: str) -> str:
    value = value_at(record, field)
    return value if isinstance(value, str) else ""
