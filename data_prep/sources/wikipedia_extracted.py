"""Wikipedia as WikiExtractor writes it: files of `<doc id= url= title=>` blocks, one article each."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, SourceConfig, SourceFile, plain_parts
from data_prep.sources.elements import Element, Malformed, cut_elements
from data_prep.sources.streams import read_chunks
from data_prep.text import clean_text
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

    def split_file(self, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
        return plain_parts(file, size_bytes, part_bytes)

    def read(self, part: FilePart) -> Iterator[Document | Reject | Skipped]:
        """The articles of a part in their order. Blocks without text below their title are skipped.

        Offsets are of the decompressed stream, from the `<` of `<doc` to after `</doc>`.
        """
        name, limit = part.file.name, self.max_block_bytes
        # The cutter wants to see the byte before the part.
        chunks = read_chunks(part.file.path, start=max(0, part.start - 1))
        for piece in cut_elements(
            chunks, _OPENING, _CLOSING, limit, at_line_start=True, start=part.start, end=part.end
        ):
            if isinstance(piece, Element):
                yield self._article(part.file, piece)
            elif isinstance(piece, Malformed):
                yield Reject(name, piece.start, piece.reason)
            elif stray := piece.head.lstrip():
                shown = stray[:40].decode("utf-8", "replace")
                start = piece.start + len(piece.head) - len(stray)
                yield Reject(name, start, f"text outside of <doc> blocks: {shown!r}")

    def _article(self, file: SourceFile, block: Element) -> Document | Reject | Skipped:
        try:
            text = block.data.decode("utf-8")
        except UnicodeDecodeError as error:
            return Reject(file.name, block.start, f"invalid UTF-8 at byte {block.start + error.start}")
        header, _, body = text.partition("\n")
        found = _HEADER.fullmatch(header.rstrip())
        if found is None:
            return Reject(file.name, block.start, f"malformed block header: {header[:80]!r}")
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
