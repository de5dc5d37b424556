"""BlingFire's sentences: fast, and right for scripts that end sentences as Latin does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from string import ascii_letters, digits

import numpy as np

PIECE_BYTES = 1 << 20
"""Approximate bytes per call of BlingFire, which needs some twenty times as much memory."""
_GROUP_BYTES = 1 << 16
"""Of short texts, BlingFire reads about so many at a time; a call costs as much as a hundred bytes."""
_BYTES_OF_A_SENTENCE = 2
"""No sentence that BlingFire finds has fewer."""
_ENDS = "ǃ۔؟․…‼‽⁈⁉␄﹒．｡。？！\u2028\u2029"
"""Other marks at which BlingFire ends sentences: its published rules' `ENDPUNCTUATION`, `AlwaysEndPunctuation`."""


def sentence_starts(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Where the sentences of every text but its first begin.

    The library reads only what is near marks that may end a sentence: a fifth of English prose; of many short texts at
    a time. It is called itself: its Python function would copy the text and decode what comes back, and its variant
    with offsets costs several times the segmentation.

    Args:
        data: [bytes] uint8 UTF-8; text `t` is `data[starts[t] : stops[t]]`.
        starts, stops: [texts] int64.

    Returns:
        [sentences] int64 offsets in `data`.
    """
    from data_prep.sentences.excerpt_kernel import SEPARATOR_BYTES, join_excerpts

    segment = _text_to_sentences()
    longest = int((stops - starts).max(initial=0))
    copied = np.empty(max(longest, _GROUP_BYTES) + SEPARATOR_BYTES, dtype=np.uint8)
    parts = np.empty((1 + len(copied) // SEPARATOR_BYTES, 3), dtype=np.int64)
    begins = np.empty(8 + len(copied) // _BYTES_OF_A_SENTENCE, dtype=np.int32)
    sentences = np.empty(len(begins), dtype=np.uint8)
    found = [np.empty(0, dtype=np.int64)]
    text = 0
    while text < len(starts):
        text, size, count = join_excerpts(data, starts, stops, text, *_characters(), copied, parts)
        room = 8 + size // _BYTES_OF_A_SENTENCE  # all of which the library fills with zeros
        # Nothing is written for white space only, or more than the library handles.
        if size and segment(_address(copied), size, _address(sentences), _address(begins), None, room) > 1:
            own = begins[1 : 1 + np.count_nonzero(begins[1:room])]
            first, stop, origin = parts[:count][parts[:count, 0].searchsorted(own, side="right") - 1].T
            # The last sentence of a text may end where it does: then another begins with the separator.
            found.append((own - first + origin)[own < stop])
    return np.concatenate(found)


@cache
def _characters() -> tuple[np.ndarray, np.ndarray]:
    """What `join_excerpts` knows of characters: classes of bytes, and of characters beyond ASCII."""
    from data_prep.sentences.excerpt_kernel import (
        BRACKET,
        CODES,
        DIGIT,
        END,
        LETTER,
        SPACE,
        WIDE,
        WIDE_END,
    )

    classes = np.zeros(256, dtype=np.uint8)
    classes[0x80:] = WIDE
    classes[[mark.encode()[0] for mark in _ENDS]] = WIDE_END
    kinds = {SPACE: "\t\n\r ", END: ".!?", BRACKET: "[:(", LETTER: ascii_letters, DIGIT: digits}
    for kind, characters in kinds.items():
        classes[list(characters.encode())] = kind
    codes = np.array([LETTER * chr(code).isalpha() for code in range(CODES)], dtype=np.uint8)
    codes[[ord(mark) for mark in _ENDS]] = END
    return classes, codes


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@cache
def _text_to_sentences() -> Callable[..., int]:
    import blingfire

    function = blingfire.blingfire.TextToSentencesWithOffsets
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer, number, pointer, pointer, pointer, number]
    function.restype = number
    return function
