"""BlingFire's sentences: fast, and right for scripts that end sentences as Latin does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

PIECE_BYTES = 1 << 20
"""Approximate bytes per call of BlingFire, which needs some twenty times as much memory."""
_SEPARATOR = b"\n"
"""BlingFire's separator of sentences."""


def sentence_starts(data: np.ndarray, pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Where the sentences of every piece but its first begin.

    Calls the library itself: its Python function would copy the text and decode what comes back, and its
    variant with offsets costs several times the segmentation.

    Args:
        data: [bytes] uint8 UTF-8 text.
        pieces: (start, end) of parts of `data`.

    Returns:
        [sentences] int64 offsets in `data`.
    """
    segment = _text_to_sentences()
    capacity = 2 * max((end - start for start, end in pieces), default=0) + 8
    sentences = bytearray(capacity)
    begins, ends = np.empty(capacity, dtype=np.int32), np.empty(capacity, dtype=np.int32)
    addresses = (_address(np.frombuffer(sentences, dtype=np.uint8)), _address(begins), _address(ends))
    origin = _address(data)
    found = [np.empty(0, dtype=np.int64)]
    for start, end in pieces:
        written = segment(origin + start, end - start, *addresses, capacity)
        if 1 < written <= capacity:  # otherwise white space only, or more than the library handles
            count = sentences.count(_SEPARATOR, 0, written - 1)
            found.append(begins[1 : count + 1].astype(np.int64) + start)
    return np.concatenate(found)


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
