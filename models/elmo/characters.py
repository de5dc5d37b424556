"""Words as characters: bytes of UTF-8 between marks, shifted by one so that 0 stands for no word at all.

This is the alphabet of the released models: 256 bytes, marks for the begin and the end of a sentence and of a word,
and padding; with the shift, 262 ids.
"""

from __future__ import annotations

from collections.abc import Sequence

SHIFT = 1
"""Id of byte 0; id 0 is kept for places without a word."""
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = (SHIFT + 256 + number for number in range(5))
"""Ids after the bytes. A sentence's begin and end are words of one such character."""
NUM_CHARACTERS = SHIFT + 256 + 5


def spell(word: bytes, max_characters: int) -> list[int]:
    """The `max_characters` ids of a word given in UTF-8; a longer one is cut at a byte."""
    return _framed([SHIFT + byte for byte in word[: max_characters - 2]], max_characters)


def spell_sentence(words: Sequence[str], max_characters: int) -> list[list[int]]:
    """The ids of a sentence's words, with its begin before them and its end after them."""
    return [
        _framed([SENTENCE_BEGIN], max_characters),
        *(spell(word.encode("utf-8", errors="surrogatepass"), max_characters) for word in words),
        _framed([SENTENCE_END], max_characters),
    ]


def _framed(inner: list[int], max_characters: int) -> list[int]:
    framed = [WORD_BEGIN, *inner, WORD_END]
    return framed + [PADDING] * (max_characters - len(framed))
