"""The header of a MediaWiki dump: facts about its wiki."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import ParseError

import mwxml
from mwxml.errors import MalformedXML

from data_prep.sources.books import primary_language
from data_prep.sources.streams import Gap, read_chunks, to_utf8
from data_prep.sources.wikipedia_links import ENGLISH_LINKS, HIDDEN_NAMESPACES, MEDIA_NAMESPACE, LinkRules

HEADER_BYTES = 1 << 20
"""A dump's first page begins before this byte (decompressed, as UTF-8)."""
XML_ERRORS = (ParseError, MalformedXML, ValueError, TypeError, AttributeError, AssertionError)
"""Errors of mwxml on XML that is malformed or has another schema."""
_LANGUAGES = (
    re.compile(rb"<mediawiki\b[^>]*?\sxml:lang=[\"']([A-Za-z]{2,3}\b)"),
    re.compile(rb"<dbname>\s*([a-z]{2,3})(?:_[a-z_]+)?wik"),
    re.compile(rb"<base>\s*https?://([a-z]{2,3})(?:-[a-z-]+)?\.wik"),
)
_FIRST_PAGE, _END = b"<page>", b"</mediawiki>"


@dataclass(frozen=True, slots=True)
class Site:
    """The wiki that a dump was taken from."""

    namespaces: Mapping[str, Any] = field(default_factory=dict)
    """mwxml's namespaces by name; needed for pages that do not tell their namespace."""
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
    taken for a dump without header.
    """
    header = b""
    for chunk in to_utf8(read_chunks(path)):
        if isinstance(chunk, Gap):
            return Site()
        header += chunk
        if _FIRST_PAGE in header or len(header) > HEADER_BYTES:
            break
    header, page, _ = header.partition(_FIRST_PAGE)
    start = header.find(b"<mediawiki")
    lang = _language(header)
    if start < 0 or b"<siteinfo" not in header:
        return Site(lang=lang, is_export=start >= 0 or bool(page))
    try:
        info = mwxml.Dump.from_file(io.BytesIO(header[start:].split(_END)[0] + _END)).site_info
    except XML_ERRORS as error:
        problem = f"malformed <siteinfo> ({error}); English namespace names are assumed"
        return Site(lang=lang, problem=problem if page else "")
    namespaces = {space.name: space for space in info.namespaces or () if space.name}
    hidden = [name for name, space in namespaces.items() if space.id in HIDDEN_NAMESPACES]
    media = [name for name, space in namespaces.items() if space.id == MEDIA_NAMESPACE]
    return Site(namespaces, ENGLISH_LINKS.extended(hidden, media), lang)


def _language(header: bytes) -> str:
    found = next(filter(None, (pattern.search(header) for pattern in _LANGUAGES)), None)
    return primary_language(found.group(1).decode()) if found else "en"
