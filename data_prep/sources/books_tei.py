"""Books as TEI XML, one document per `<TEI>`: ELTeC, Wikisource exports, national text archives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceFile, read_whole
from data_prep.sources.books import BooksConfig, primary_language
from data_prep.text import UnreadableError, names
from data_prep.text.xml import BookBuilder, Roles, local_name, parse_xml

_ROOTS = frozenset({"TEI", "TEI.2", "teiCorpus", "teiCorpus.2"})
_DIVISIONS = ("div", *(f"div{level}" for level in range(8)))
_CHAPTER_TYPES = frozenset(
    {"chapter", "letter", "canto", "act", "tale", "story", "liminal", "preface", "prologue"}
)
_HIDDEN_TYPES = frozenset(
    {"notes", "footnotes", "endnotes", "titlepage", "toc", "contents", "index", "advertisement"}
)
_HIDDEN = frozenset({"note", "fw", "figure", "titlePage", "del", "gap", "listBibl", "desc"})
_SUPERSEDED = frozenset({"sic", "orig", "abbr"})
"""Elements of `<choice>` beside a corrected, regularised or expanded reading."""
_EDITION = re.compile(r"\s*[:.]\s*[^:.]{0,40}\b(?:ELTeC|electronic|digital)\b[^:.]{0,40}$", re.IGNORECASE)
_LIFE_DATES = re.compile(r"\s*\([^()]*\d{3}[^()]*\)\s*$")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _is_hidden(element: Any) -> bool:
    name = local_name(element)
    if name in _HIDDEN or element.get("break") == "no":  # a line break within a word
        return True
    if name in _SUPERSEDED:
        parent = element.getparent()
        return parent is not None and local_name(parent) == "choice"
    if name == "ref":  # the mark of a note: it leads to one, or has no two letters side by side
        target = element.get("target")
        return not _LETTERS.search("".join(element.itertext())) if target is None else target.startswith("#")
    return element.get("type", "").lower() in _HIDDEN_TYPES and name in _DIVISIONS


_ROLES = Roles(
    paragraphs=names(
        "p ab head lg sp speaker stage item list trailer opener closer salute signed dateline epigraph "
        "argument byline row table body front back group text"
    ).union(_DIVISIONS),
    lines=frozenset({"l"}),
    spaces=frozenset({"lb", "cell"}),
    headings=frozenset({"head"}),
    is_hidden=_is_hidden,
)


class BooksTeiConfig(BooksConfig):
    """Books in the XML of the Text Encoding Initiative. Title pages and notes are left out."""

    kind: Literal["books_tei"] = "books_tei"

    def documents_of(self, file: SourceFile) -> Iterator[Document | Skipped]:
        """The book as one document, with the title, author and language of its header; skipped when it is empty.

        The books of a `<teiCorpus>`, which may hold corpora, are documents of their own, numbered from 1.
        """
        data = read_whole(file, self.max_book_bytes)
        root = parse_xml(data)
        books = root.iter("{*}TEI", "{*}TEI.2") if local_name(root) in _ROOTS else ()
        texts = [text for each in books if (text := each.find("{*}text")) is not None]
        if not texts:
            raise UnreadableError(f"not a TEI book: its root is <{local_name(root)}>, or it has no <text>")
        for number, text in enumerate(texts, start=1):
            title, author, lang = _header(text.getparent(), text)
            whole = self.book(
                file, _chapters(text), size_bytes=len(data), title=title, author=author, lang=lang
            )
            if len(texts) > 1 and isinstance(whole, Document):
                whole = replace(whole, doc_id=f"{whole.doc_id}#{number}")
            yield whole


def _chapters(text: Any) -> list[list[str]]:
    """Chapters are the divisions of such a type, and those that hold none and lie in none."""
    divisions = set(text.iter(*(f"{{*}}{name}" for name in _DIVISIONS)))
    typed = {each for each in divisions if each.get("type", "").lower() in _CHAPTER_TYPES}
    within = {each: divisions.intersection(each.iterancestors()) for each in divisions}
    parts = {part for each in typed for part in within[each]} - typed
    opening = {each for each in divisions if within[each] <= parts}
    builder = BookBuilder(_ROLES)
    builder.add(text, opening.__contains__)
    return builder.parts


def _header(root: Any, text: Any) -> tuple[str, str, str]:
    """(title, author, language), each "" where the header does not state it."""
    statement = root.find("{*}teiHeader/{*}fileDesc/{*}titleStmt")
    titles = [] if statement is None else statement.findall("{*}title")
    authors = [] if statement is None else statement.findall("{*}author")
    title = _EDITION.sub("", _plain(titles[0])) if titles else ""
    declared = root.find(".//{*}profileDesc//{*}language")
    stated = text.get(_XML_LANG), None if declared is None else declared.get("ident"), root.get(_XML_LANG)
    lang = next(filter(None, map(primary_language, stated)), "")
    return title, "; ".join(filter(None, map(_author, authors))), lang


def _author(element: Any) -> str:
    """`Adam, Juliette`, from a structured name or from text with or without dates of birth and death."""
    surname, forename = element.find(".//{*}surname"), element.find(".//{*}forename")
    if surname is None:
        return _LIFE_DATES.sub("", _plain(element))
    return ", ".join(_plain(name) for name in (surname, forename) if name is not None)


def _plain(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())
