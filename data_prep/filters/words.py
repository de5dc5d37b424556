"""The words and lines of a text, as several filters see them.

Filters in a chain look at the same text one after another, so the last answers are kept.
"""

from __future__ import annotations

import re
from functools import lru_cache

import regex

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts that put no spaces between words."""
_MAY_BE_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u19ff\u2e80-\ua9ff\uaa60-\uaaff\uf900-\ufaff\uff66-\uff9f"
    "\U000116d0-\U000116ff\U00016fe0-\U0001b2ff\U0001f200-\U0001f2ff\U00020000-\U0003ffff]"
)
"""All those scripts and a little more, for a check that costs little."""
_SPACED_WORDS = regex.compile(r"\w+")
_ALL_WORDS = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[\w--[{_UNSPACED}]]+", regex.VERSION1)


@lru_cache(maxsize=1)
def words(text: str) -> tuple[str, ...]:
    """Runs of letters, marks, digits and underscores; of scripts without spaces every character with its marks.

    Counting characters as words makes Chinese or Thai comparable in number, not in length: rules about the
    length of words need other limits there.
    """
    if text.isascii() or not _MAY_BE_UNSPACED.search(text):
        return tuple(_SPACED_WORDS.findall(text))
    return tuple(_ALL_WORDS.findall(text))


@lru_cache(maxsize=1)
def lines(text: str) -> tuple[str, ...]:
    """The lines that hold more than white space, without the white space around them."""
    return tuple(line for line in map(str.strip, text.split("\n")) if line)
