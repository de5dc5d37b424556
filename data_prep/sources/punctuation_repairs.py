"""Punctuation that dropped templates, links and formulas leave hollow: `Tokyo (, ) is` becomes `Tokyo is`.

The rules run in the order of the table, each on the output of the ones before it: empty brackets go before the spaces
around them are merged, and commas meet only then.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from data_prep.sources.wikitext_marks import PLACE


class Repair(NamedTuple):
    """One rule."""

    signs: tuple[str, ...]
    """Strings of which the text must hold one; looking for them costs a tenth of looking for the pattern."""
    pattern: re.Pattern[str]
    replacement: str


def _repair(signs: tuple[str, ...], pattern: str, replacement: str = "") -> Repair:
    return Repair(signs, re.compile(pattern), replacement)


REPAIRS = {
    "empty brackets": _repair(("(", "["), r"(?<![\w\]])\([ \t,;:]*\)|\([ \t,;:]+\)|(?<![\w\]])\[[ \t]*\]"),
    "empty full-width brackets": _repair(("（",), r"（[\s、，；：,;:]*）"),
    "full-width bracket before punctuation": _repair(("（",), r"（[\s、，；：]+", "（"),
    "punctuation before full-width bracket": _repair(("）",), r"[\s、，；：]+）", "）"),
    "repeated full-width commas": _repair(("，，", "、、", "，、", "、，"), r"([、，])[、，]+", r"\1"),
    "full-width comma before full stop": _repair(("，。", "、。"), r"[、，]+。", "。"),
    "repeated spaces": _repair(("  ", "\t", "\u00a0"), r"[ \t\u00a0]{2,}", " "),
    "punctuation before bracket": _repair((" )", ",)", ";)"), r"[ ,;]{1,8}\)", ")"),
    "bracket before punctuation": _repair(("( ", "(,", "(;"), r"\((?: ?[,;])+ ?", "("),
    "space before comma": _repair((" ,", " ;"), r"(?<=\S) (?=[,;]\s)"),
    "repeated commas": _repair((",,", ", ,"), r",(?: ?,)+", ","),
    "space before full stop": _repair((" .",), rf"(?<=[\w{PLACE}]) \.(?=\s|$)", "."),
}
"""The rules by name, in their order."""


def repair_punctuation(text: str) -> str:
    """Apply all rules."""
    for signs, pattern, replacement in REPAIRS.values():
        if any(sign in text for sign in signs):
            text = pattern.sub(replacement, text)
    return text
