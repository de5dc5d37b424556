"""Cleaning that the text of every source goes through."""

from __future__ import annotations

import re

_LINE_ENDS = ("\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029")
# Lone surrogates cannot be stored as UTF-8; U+FEFF inside text is a stray byte order mark.
_UNWANTED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff]")
_BLANK_LINES = re.compile(r"\n{3,}")


def clean_text(text: str) -> str:
    """Text with one kind of line end, no other control characters but tabs, and single blank lines."""
    for end in _LINE_ENDS:
        text = text.replace(end, "\n")
    text = _UNWANTED.sub("", text)
    text = "\n".join([line.rstrip() for line in text.split("\n")])
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip("\n")
