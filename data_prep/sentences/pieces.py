"""Long texts in pieces, so that time and memory of a segmenter stay bounded whatever a text looks like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def pieces_of(data: np.ndarray, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces that make up `data[start:end]`, each of at most twice `size` bytes.

    A piece ends at the first line break beyond `size`, where a sentence ends anyway; without one, at the last
    space; without that, between any two characters. No sentence begins at the latter two as far as we know.

    Args:
        data: [bytes] uint8 UTF-8 text.
    """
    while end - start > 2 * size:
        full = start + size
        stop = full + _best_end(data[full : full + size].tobytes())
        yield start, stop
        start = stop
    yield start, end


def all_pieces_of(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where the pieces of all texts begin and end, as `pieces_of` has them.

    Args:
        data: [bytes] uint8 UTF-8.
        starts, stops: [texts] int64, ascending: text `t` is `data[starts[t] : stops[t]]`.
    """
    is_long = stops - starts > 2 * size
    long_texts = zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True)
    pieces = [piece for start, stop in long_texts for piece in pieces_of(data, start, stop, size)]
    bounds = np.concatenate(
        [np.stack([starts, stops], 1)[~is_long], np.array(pieces, dtype=np.int64).reshape(len(pieces), 2)]
    )
    bounds = bounds[np.argsort(bounds[:, 0], kind="stable")] if pieces else bounds
    return bounds[:, 0].copy(), bounds[:, 1].copy()


def _best_end(tail: bytes) -> int:
    behind_line = tail.find(b"\n") + 1
    behind_word = tail.rfind(b" ") + 1
    return behind_line or behind_word or _last_character(tail)


def _last_character(text: bytes) -> int:
    last = len(text) - 1
    while text[last] & 0xC0 == 0x80:
        last -= 1
    return last
