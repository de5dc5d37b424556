"""Where sentences start, and where a text can be cut there without changing how it is tokenised.

Boundaries come from BlingFire and from line breaks. A cut lies right before the last white-space character
ahead of a sentence: the GPT-2 pre-tokenizer never joins that character to what precedes it, and looks at
nothing behind it, so encoding the pieces one by one gives the ids of the whole text. In scripts without
spaces, a cut may lie between a full stop and a letter, which that pre-tokenizer always separates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from data_prep.ragged import Ragged

_WHITE = (
    *(*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)),
    *(0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
)
"""Code points with the Unicode property White_Space, which is what `\\s` means to the pre-tokenizer."""
_DOUBTFUL = (0x1C, 0x1D, 0x1E, 0x1F, 0x180E, 0x200B, 0xFEFF)
"""White space to some definitions. No sentence starts with one, so no cut depends on the definition."""
_TABLE_SIZE = 0x10000
_LINE_BREAKS = (0x0A, 0x0D, 0x2028, 0x2029)
_WIDE_STOPS = (0x3002, 0xFF01, 0xFF1F, 0xFF0E, 0xFF61, 0x2026, 0x300D, 0x300F, 0x201D)
"""Full stops, question and exclamation marks, ellipsis and closing quotes of East Asian text."""
_WIDE_LETTERS = ((0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3))
"""Hiragana, Katakana, Han, Hangul: letters in every version of Unicode that a tokenizer may know."""
BLOCK_CHARACTERS = 1 << 20
"""Longer texts are handled in blocks that end at a line break, so that working memory stays bounded."""


def _table(code_points: tuple[int, ...]) -> np.ndarray:
    table = np.zeros(_TABLE_SIZE, dtype=bool)
    table[list(code_points)] = True
    return table


_IS_WHITE = _table(_WHITE)
_IS_SOLID = ~_table((*_WHITE, *_DOUBTFUL))
_IS_BREAK = _table(_LINE_BREAKS)


def cut_points(text: str, sentences: str) -> np.ndarray:
    """[cuts] int64 ascending character offsets in `text`, none of them 0, at which its sentences are cut.

    `text[: cuts[0]], text[cuts[0] : cuts[1]], ...` are the sentences; every one but the first begins with the
    white space ahead of it, and none is white space only (unless the whole text is).

    Args:
        sentences: `blingfire`, or `none` for no cuts at all.
    """
    return SEGMENTERS[sentences](text)


def cut_sentences(texts: pa.Array, langs: pa.Array, method: str) -> Ragged:
    """Where the sentences of texts begin.

    Args:
        texts: [documents] string.
        langs: [documents] string, ISO 639-1 codes of their languages.
        method: a name in `SEGMENTERS`.

    Returns:
        Per document the ascending UTF-8 byte offsets (int64) of its sentences but the first.
    """
    cuts = []
    for text in texts.to_pylist():
        points = cut_points(text, method)
        if not text.isascii() and len(points):
            points = _character_starts(text.encode("utf-8"))[points]
        cuts.append(points)
    return Ragged.of(cuts)


def split_at(text: str, cuts: np.ndarray) -> list[str]:
    """The pieces of a text between its cuts; joined, they are the text. None for an empty text."""
    if not text:
        return []
    bounds = [0, *cuts.tolist(), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def _no_cuts(text: str) -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def _blingfire_cuts(text: str) -> np.ndarray:
    parts = []
    start = 0
    while start < len(text):
        end = _block_end(text, start)
        # One character of context, the line break, so that a cut before the block's first line is found.
        context = max(start - 1, 0)
        parts.append(_cuts_in_block(text[context:end]) + context)
        start = end
    cuts = np.unique(np.concatenate([_no_cuts(text), *parts]))
    leading = len(text) - len(text.lstrip())
    return cuts[cuts >= max(leading, 1)]


def _block_end(text: str, start: int) -> int:
    """End of the block that starts at `start`: right after the first line break past its full size."""
    newline = text.find("\n", start + BLOCK_CHARACTERS)
    return len(text) if newline < 0 else newline + 1


def _cuts_in_block(text: str) -> np.ndarray:
    encoded = text.encode("utf-8")
    codes = _code_points(text, encoded)
    white, solid = _IS_WHITE[codes], _IS_SOLID[codes]
    found = _sentence_start_bytes(encoded)
    if len(encoded) != len(text):
        found = np.searchsorted(_character_starts(encoded), found)
    ink = np.flatnonzero(~white)
    candidates = _next_of(ink, np.concatenate([found, np.flatnonzero(_IS_BREAK[codes])]))
    candidates = candidates[(candidates > 0) & solid[candidates]]
    spaced = candidates[white[candidates - 1]] - 1
    return np.concatenate([spaced, candidates[_between_wide(codes, candidates)]])


def _code_points(text: str, encoded: bytes) -> np.ndarray:
    """[characters] of an unsigned integer type; all those beyond the tables become their last entry."""
    if len(encoded) == len(text):
        return np.frombuffer(encoded, dtype=np.uint8)
    return np.minimum(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), _TABLE_SIZE - 1)


def _character_starts(encoded: bytes) -> np.ndarray:
    """[characters] int64 byte offsets: every byte that is no UTF-8 continuation."""
    return np.flatnonzero((np.frombuffer(encoded, dtype=np.uint8) & 0xC0) != 0x80)


def _next_of(ascending: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For each position the first element of `ascending` at or after it, if there is one."""
    places = np.searchsorted(ascending, positions)
    return ascending[places[places < len(ascending)]]


def _between_wide(codes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[positions] bool: an East Asian stop before the position, an East Asian letter at it."""
    at = codes[positions]
    letter = np.zeros(len(positions), dtype=bool)
    for first, last in _WIDE_LETTERS:
        letter |= (at >= first) & (at <= last)
    if not letter.any():
        return letter
    return letter & np.isin(codes[positions - 1], _WIDE_STOPS)


def _sentence_start_bytes(encoded: bytes) -> np.ndarray:
    """[sentences] int64 byte offsets of the sentences that BlingFire finds.

    Calls the library itself: the offsets of its Python wrapper cost several times the segmentation.
    """
    capacity = 2 * len(encoded) + 8
    output = np.empty(capacity, dtype=np.uint8)
    starts, ends = np.empty(capacity, dtype=np.int32), np.empty(capacity, dtype=np.int32)
    written = _text_to_sentences()(
        encoded,
        len(encoded),
        output.ctypes.data,
        starts.ctypes.data,
        ends.ctypes.data,
        capacity,
    )
    if not 1 < written <= capacity:  # white space only, or more than the library handles
        return np.empty(0, dtype=np.int64)
    count = int(np.count_nonzero(output[: written - 1] == 0x0A)) + 1
    return starts[:count].astype(np.int64)


@cache
def _text_to_sentences() -> Callable[..., int]:
    import blingfire

    function = blingfire.blingfire.TextToSentencesWithOffsets
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [ctypes.c_char_p, number, pointer, pointer, pointer, number]
    function.restype = number
    return function


SEGMENTERS = MappingProxyType({"blingfire": _blingfire_cuts, "none": _no_cuts})
"""Every way to find sentences, by its name in the configuration."""
