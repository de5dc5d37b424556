"""Repair and normalise characters: mojibake, line breaks, control and invisible characters, odd spaces, NFC.

Clean text is recognised cheaply and left alone: ftfy repairs only lines that its own detector of mojibake
marks.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from data_prep.document import Document
from data_prep.filters.base import Apply, FilterConfig, Passed

_LINE_BREAKS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_INVISIBLE = re.compile("[\xad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SUSPECT = re.compile("[^\x00-\x7f][^\x00-\x7f]|[ÂÃ\x80-\x9f]")
"""Mojibake of a character has two characters or more, except where the second became a space."""
MAX_PASSES = 8
"""Most repetitions of all steps: the output of one can need an earlier one again, as mojibake around a control
character does."""


class UnicodeConfig(FilterConfig):
    """Settings of the repair and normalisation of characters."""

    kind: Literal["unicode"] = "unicode"
    repair: bool = True
    """Undo mojibake, UTF-8 that was read as another encoding, line by line."""
    normal_form: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normal form. NFKC also replaces ligatures, full-width letters and superscripts."""
    controls: bool = True
    """Remove control characters; line breaks of all kinds become line feeds."""
    invisible: bool = True
    """Remove zero-width spaces, soft hyphens, byte order marks and direction marks. Joiners (U+200C, U+200D) stay:
    Persian, Indic scripts and emoji need them. Khmer and Thai use the zero-width space between words: switch this
    off there to keep it."""
    spaces: bool = True
    """Turn no-break, thin, ideographic and other spaces into plain ones."""

    def build(self) -> Apply:
        """A filter that changes text and drops nothing; counts `repaired` documents."""
        from data_prep.text.encodings import repair_mojibake

        def apply(document: Document) -> Passed:
            text = document.text
            if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
                return Passed(document)
            repaired = 0
            for _ in range(MAX_PASSES):
                before = text
                if self.repair:
                    text = repair_mojibake(text, _SUSPECT)
                    repaired |= text != before
                text = _normalise(text, self)
                if text == before:
                    break
            return Passed.with_text(document, text, **({"repaired": 1} if repaired else {}))

        return apply


def _normalise(text: str, config: UnicodeConfig) -> str:
    # No replaced character is printable, and this finds them several times faster than the expressions do.
    if not text.replace("\n", "").isprintable():
        if config.controls:
            text = _CONTROLS.sub("", _LINE_BREAKS.sub("\n", text))
        if config.invisible:
            text = _INVISIBLE.sub("", text)
        if config.spaces:
            text = _SPACES.sub(" ", text)
    return text if config.normal_form == "none" else unicodedata.normalize(config.normal_form, text)
