"""Project Gutenberg's frame around a book: found, read for what it tells, and taken off."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER_CHARACTERS = 100_000
"""The header's end is looked for in this much of a file's beginning: a novel may well say `*** START OF`."""
FOOTER_CHARACTERS = 60_000
"""The footer's start is looked for in this much of a file's end; the licence is about 20,000 long."""

_HEADER_END = re.compile(
    r"^[ \t]*\*{3}[ ]?START OF (?:THE|THIS) PROJECT GUTENBERG[^*]{0,500}\*{3}[^\n]*\n"
    r"|^[ \t]*\*END[ *]{1,3}THE SMALL PRINT![^\n]{0,200}\n",
    re.IGNORECASE | re.MULTILINE,
)
"""Since 2004; before."""
_FOOTER_START = re.compile(
    r"^[ \t]*\*{3}[ ]?END OF (?:THE|THIS) PROJECT GUTENBERG"
    r"|^[ \t]*(?:\*{3} ?)?End of (?:the |this )?Project Gutenberg(?:'s|’s|\b)[^\n]{0,300}$"
    r"|^[ \t]*\*{3}START\*{2}THE SMALL PRINT!",
    re.IGNORECASE | re.MULTILINE,
)
_FIELD = re.compile(
    r"^(Title|Author|Language): *(\S[^\n]{0,300}(?:\n[ \t]+\S[^\n]{0,300}){0,5})", re.MULTILINE
)
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|This e-?text was (?:produced|prepared|typed|scanned)|"
    r"(?:Transcribed|Prepared|Scanned|Typed|Digitized) (?:and proofed |and edited )?(?:by|from)|"
    r"(?:HTML|Text) version by)\b[^\n]*(?:\n[^\n]+){0,7}(?=\n[ \t]*\n|\s*$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A book without its frame, and what the frame says of it."""

    text: str
    title: str = ""
    author: str = ""


def take_off_frame(text: str) -> Frame:
    """The book between Project Gutenberg's header and footer, of any of their styles; other text as it is.

    Lines of thanks at the book's beginning (`Produced by`) belong to the frame, transcriber's notes to the book.
    """
    head = text[:HEADER_CHARACTERS]
    title = author = ""
    ends = [found.end() for found in _HEADER_END.finditer(head)]
    if ends:
        fields = {key: " ".join(value.split()) for key, value in _FIELD.findall(head[: ends[0]])}
        title, author = fields.get("Title", ""), fields.get("Author", "")
        text = text[ends[-1] :]
        while credit := _CREDITS.match(text[:HEADER_CHARACTERS]):
            text = text[credit.end() :]
    tail_start = max(0, len(text) - FOOTER_CHARACTERS)
    if footer := _FOOTER_START.search(text, tail_start):
        text = text[: footer.start()]
    return Frame(text.strip("\n"), title, author)
