"""BlingFire's sentences: fast, and right for scripts that end sentences as Latin does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from string import ascii_letters, digits

import numpy as np

PIECE_BYTES = 1 << 20
"""Approximate bytes per call of BlingFire, which needs some twenty times as much memory."""
_SEPARATOR = b"\n"
"""BlingFire's separator of sentences."""
_ENDS = "ǃ۔؟․…‼‽⁈⁉␄﹒．｡。？！\u2028\u2029"
"""Other marks at which BlingFire ends sentences: its published rules' `ENDPUNCTUATION`, `AlwaysEndPunctuation`."""


def sentence_starts(data: np.ndarray, pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Where the sentences of every piece but its first begin.

    The library reads only what is near marks that may end a sentence: a fifth of English prose. It is called itself:
    its Python function would copy the text and decode what comes back, and its variant with offsets costs several
    times the segmentation.

    Args:
        data: [bytes] uint8 UTF-8 text.
        pieces: (start, end) of parts of `data`.

    Returns:
        [sentences] int64 offsets in `data`.
    """
    from data_prep.sentences.excerpt_kernel import SEPARATOR_BYTES, excerpt

    segment = _text_to_sentences()
    longest = max((end - start for start, end in pieces), default=0)
    copied = np.empty(longest, dtype=np.uint8)
    places, origins = np.empty((2, longest // SEPARATOR_BYTES + 1), dtype=np.int64)
    capacity = 2 * longest + 8
    sentences = bytearray(capacity)
    begins, ends = np.empty(capacity, dtype=np.int32), np.empty(capacity, dtype=np.int32)
    addresses = (_address(np.frombuffer(sentences, dtype=np.uint8)), _address(begins), _address(ends))
    text, characters = _address(copied), _characters()
    found = [np.empty(0, dtype=np.int64)]
    for start, end in pieces:
        size, parts = excerpt(data, start, end, *characters, copied, places, origins)
        capacity = 2 * size + 8  # all of which the library fills with zeros
        written = segment(text, size, *addresses, capacity) if size else 0
        if 1 < written <= capacity:  # otherwise white space only, or more than the library handles
            count = sentences.count(_SEPARATOR, 0, written - 1)
            own = begins[1 : count + 1]
            part = places[:parts].searchsorted(own, side="right") - 1
            found.append(own - places[part] + origins[part])
    return np.concatenate(found)


@cache
def _characters() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `excerpt` knows of characters: classes of bytes, letters, ends of sentences beyond ASCII."""
    from data_prep.sentences.excerpt_kernel import BRACKET, DIGIT, END, LEAD, LETTER, LETTER_CODES, SPACE

    classes = np.zeros(256, dtype=np.uint8)
    classes[0x80:] = LEAD
    kinds = {SPACE: "\t\n\r ", END: ".!?", BRACKET: "[:(", LETTER: ascii_letters, DIGIT: digits}
    for kind, characters in kinds.items():
        classes[list(characters.encode())] = kind
    letters = np.array([chr(code).isalpha() and chr(code) not in _ENDS for code in range(LETTER_CODES)])
    return classes, letters, np.sort(np.array([ord(mark) for mark in _ENDS], dtype=np.int64))


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
