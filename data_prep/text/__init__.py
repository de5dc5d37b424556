"""Text out of formats: HTML, wikitext, books, bytes in any encoding; and what it holds: words and personal data.

A library that imports nothing else of ours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINE_ENDS = ("\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029")
# Lone surrogates cannot be stored as UTF-8; U+FEFF inside text is a stray byte order mark.
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]")
_BLANK_LINES, _CHAPTER_BREAKS = re.compile(r"\n{3,}"), re.compile(r"\n{4,}")


class UnreadableError(ValueError):
    """Bytes or text that is not what it should be (XML, a page, a book), or is made to exhaust its reader."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        """Byte near which the trouble was met."""


def clean_text(text: str, *, keep_chapters: bool = False) -> str:
    """Text with one kind of line end, no other control characters but tabs, and single blank lines.

    Args:
        keep_chapters: keep two blank lines, the mark between chapters of a book; more become two.
    """
    # Most text needs no work, and this finds it three times faster than the expression does.
    is_plain = text.replace("\n", "").replace("\t", "").isprintable()
    if not is_plain and _UNWANTED.search(text):
        for end in _LINE_ENDS:
            text = text.replace(end, "\n")
        text = _UNWANTED.sub("", text)
    if not is_plain or " \n" in text or "\t\n" in text or text.endswith((" ", "\t")):
        text = "\n".join([line.rstrip() for line in text.split("\n")])
    if "\n\n\n" in text:
        text = _CHAPTER_BREAKS.sub("\n\n\n", text) if keep_chapters else _BLANK_LINES.sub("\n\n", text)
    return text.strip("\n")


def names(words: str) -> frozenset[str]:
    """A set of names from the line that lists them."""
    return frozenset(words.split())


def table(name: str) -> Any:
    """The contents of this package's data file `NAME.yaml`."""
    import yaml

    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8"))
