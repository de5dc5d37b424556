"""sentencex's sentences: slower, and knows the full stops of some 300 languages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

PIECE_BYTES = 1 << 12
"""Approximate characters per call of sentencex: its time grows with the square of the length of a line."""


def sentence_starts(data: np.ndarray, pieces: Iterable[tuple[int, int]], lang: str) -> np.ndarray:
    """Where the sentences of every piece but its first begin.

    Args:
        data: [bytes] uint8 UTF-8 text.
        pieces: (start, end) of parts of `data`.
        lang: ISO 639 code; what sentencex does not know, it reads as English.

    Returns:
        [sentences] int64 offsets in `data`.
    """
    from sentencex import get_sentence_boundaries  # pyright: ignore[reportAttributeAccessIssue]

    found = [np.empty(0, dtype=np.int64)]
    for start, end in pieces:
        text = data[start:end].tobytes().decode()
        boundaries = get_sentence_boundaries(lang, text)
        if len(boundaries) > 1:
            characters = np.array([boundary["start_index"] for boundary in boundaries[1:]], dtype=np.int64)
            character_starts = np.flatnonzero((data[start:end] & 0xC0) != 0x80)
            found.append(character_starts[characters] + start)
    return np.concatenate(found)
