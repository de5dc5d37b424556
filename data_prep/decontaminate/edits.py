"""Map places between a document and its text after removing parts; cut out more of it."""

from __future__ import annotations

import numpy as np

from data_prep.ragged import offsets_of
from data_prep.text.words import Words, split_words


class EditedText:
    """A document's text without what earlier stages removed from it."""

    def __init__(self, document: str, spans: np.ndarray) -> None:
        """Remove [spans, 2] ranges of bytes from a document, as `remove_spans` does."""
        data = document.encode("utf-8")
        # [bytes of the document] bool: whether earlier stages left the byte in.
        self._kept = np.ones(len(data), dtype=bool)
        for start, end in spans.tolist():
            self._kept[start:end] = False
        original = np.flatnonzero(self._kept)
        whole = np.frombuffer(data, dtype=np.uint8)[original].tobytes()
        left = len(whole) - len(whole.lstrip(b"\n"))
        text = whole.strip(b"\n")
        # [bytes of the text] int64: the byte of the document that each is.
        self._original = original[left : left + len(text)]
        self.text = text.decode("utf-8")
        points = np.frombuffer(self.text.encode("utf-32-le"), dtype="<u4")
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        # [characters + 1] int64: the first byte in the text of each character.
        self._boundaries = offsets_of(widths)

    def to_document(self, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ranges of bytes in the document that ranges of characters in the text (not empty) come from.

        What was removed inside of a range is inside of the result; what was removed beside it is not.
        """
        return self._original[self._boundaries[start]], self._original[self._boundaries[end] - 1] + 1

    def from_document(self, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse of `to_document`."""
        first, last = np.searchsorted(self._original, start), np.searchsorted(self._original, end)
        return np.searchsorted(self._boundaries, first), np.searchsorted(self._boundaries, last)

    def spans_without(self, cuts: list[tuple[int, int]]) -> np.ndarray:
        """[spans, 2] int64 ranges of bytes to remove from the document: earlier removals and `cuts` together.

        Args:
            cuts: ranges of characters of the text, ascending and disjoint.
        """
        kept = self._kept.copy()
        for start, end in cuts:
            first, last = self.to_document(np.asarray([start]), np.asarray([end]))
            kept[first[0] : last[0]] = False
        edges = np.diff(np.concatenate([[True], kept, [True]]).astype(np.int8))
        return np.stack([np.flatnonzero(edges < 0), np.flatnonzero(edges > 0)], axis=1)


def widen(text: str, starts: np.ndarray, ends: np.ndarray, characters: int) -> list[tuple[int, int]]:
    """Overlaps with their surroundings: ascending and disjoint ranges of characters.

    Every range is `characters` longer on both sides and then ends between words. Where it leaves a space on
    both sides, one of them goes with it.
    """
    words = split_words([text])
    merged: list[tuple[int, int]] = []
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        first, _ = _around(words, max(0, start - characters))
        _, last = _around(words, min(len(text), end + characters))
        if text[last : last + 1] == " " and (first == 0 or text[first - 1].isspace()):
            last += 1
        if merged and first <= merged[-1][1]:
            first, last = merged[-1][0], max(last, merged.pop()[1])
        merged.append((first, last))
    return merged


def cut_short_pieces(
    length: int, cuts: list[tuple[int, int]], min_characters: int
) -> tuple[list[tuple[int, int]], int]:
    """Cut pieces that are shorter than `min_characters` too.

    Args:
        length: characters of the text.

    Returns:
        The cuts, ascending and disjoint, and the number of pieces before.
    """
    bounds = [0, *(place for cut in cuts for place in cut), length]
    pieces = [(bounds[i], bounds[i + 1]) for i in range(0, len(bounds), 2) if bounds[i] < bounds[i + 1]]
    kept = [piece for piece in pieces if piece[1] - piece[0] >= min_characters]
    edges = [0, *(place for piece in kept for place in piece), length]
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i] < edges[i + 1]], len(pieces)


def _around(words: Words, place: int) -> tuple[int, int]:
    """Start and end of the word that `place` is inside of; `place` itself where it is inside of none."""
    word = int(np.searchsorted(words.places, place, side="right")) - 1
    if word >= 0 and words.places[word] < place < words.ends[word]:
        return int(words.places[word]), int(words.ends[word])
    return place, place
