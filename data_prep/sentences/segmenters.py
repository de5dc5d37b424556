"""The segmenters: BlingFire, fast, and sentencex, which knows the full stops of some 300 languages.

Each reads long texts in pieces, so that its time and memory stay bounded whatever a text looks like.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLINGFIRE_PIECE_BYTES = 1 << 20
"""Approximate bytes per call of BlingFire, which needs some twenty times as much memory."""
SENTENCEX_PIECE_BYTES = 1 << 12
"""Approximate bytes per call of sentencex: its time grows with the square of the length of a line."""
_BYTE_ORDER_MARK = "\ufeff".encode()


def starts_by_blingfire(data: np.ndarray, start: int, end: int) -> list[int]:
    """Starts of the sentences of a text but its first.

    BlingFire returns sentences, each on a line of its own and a line break within as a space; they are found again
    in the text in order. Its variant with offsets costs several times the segmentation.

    Args:
        data: [bytes] uint8 UTF-8; the text is `data[start:end]`.

    Returns:
        Ascending offsets in `data`.
    """
    import blingfire

    starts: list[int] = []
    for first, stop in pieces_of(data, start, end, BLINGFIRE_PIECE_BYTES):
        text = data[first:stop].tobytes().replace(b"\0", b" ")  # a NUL would end the text for the library
        sentences = blingfire.text_to_sentences(text.decode()).encode().split(b"\n")
        text = text.replace(b"\n", b" ")
        place = text.find(sentences[0]) + len(sentences[0])
        for sentence in sentences[1:]:
            place = text.index(sentence, place)
            starts.append(first + place)
            place += len(sentence)
    return starts


def starts_by_sentencex(data: np.ndarray, start: int, end: int, lang: str) -> list[int]:
    """Starts of the sentences of a text but its first, as `starts_by_blingfire` has them.

    Args:
        lang: ISO 639 code; what sentencex does not know, it reads as English.
    """
    from sentencex import get_sentence_boundaries  # pyright: ignore[reportAttributeAccessIssue]

    starts: list[int] = []
    for first, stop in pieces_of(data, start, end, SENTENCEX_PIECE_BYTES):
        boundaries = get_sentence_boundaries(lang, data[first:stop].tobytes().decode())
        if len(boundaries) > 1:
            character_starts = np.flatnonzero((data[first:stop] & 0xC0) != 0x80) + first
            starts += character_starts[[each["start_index"] for each in boundaries[1:]]].tolist()
    return starts


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


def _best_end(tail: bytes) -> int:
    behind_line = tail.find(b"\n") + 1
    behind_word = tail.rfind(b" ") + 1
    return behind_line or behind_word or _last_character(tail)


def _last_character(text: bytes) -> int:
    last = len(text) - 1
    while text[last] & 0xC0 == 0x80:
        last -= 1
    return last
