"""Words by number, with the ids that each stands for; as arrays, which compiled loops read and fill in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.ragged import Ragged
from data_prep.tokenizers.lookup_kernel import find_words, spread_slots

_SLOTS = 1 << 15
_KEY_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Found:
    """The words of some texts."""

    numbers: np.ndarray
    """[words] int32 numbers in the table."""
    starts: np.ndarray
    """[words] int32 bytes in the texts."""
    ends: np.ndarray
    first_words: np.ndarray
    """[texts + 1] int64: the words of text `t` are those from `first_words[t]` to before `first_words[t + 1]`."""
    begins_loose: np.ndarray
    """[texts] bool: the first character of each text is `LOOSE`."""


NO_WORD = 0
"""Number of what has no tokens."""


class WordTable:
    """A hash table from words to ids, with open addressing."""

    def __init__(self) -> None:
        self._slots = np.zeros(_SLOTS, dtype=np.uint64)
        self.key_offsets = np.zeros(_SLOTS // 2 + 1, dtype=np.int64)
        self.keys = np.empty(_KEY_BYTES, dtype=np.uint8)
        """UTF-8: word `n` is `keys[key_offsets[n] : key_offsets[n + 1]]`."""
        self.flags = np.empty(_SLOTS // 2, dtype=np.uint8)
        """[words] see `lookup_kernel.py`."""
        self.num_words = 1
        self.num_encoded = 1
        """Words that have ids: the first ones."""
        self.tokens = np.empty((_SLOTS, 2), dtype=np.uint32)
        """[tokens, 2]: ids, and bytes from the start of the word to the end of each token, or `UNKNOWN_END`."""
        self.token_offsets = np.zeros(_SLOTS // 2 + 1, dtype=np.int64)
        """The tokens of word `n` are those from `token_offsets[n]` to before `token_offsets[n + 1]`."""

    @property
    def num_bytes(self) -> int:
        """What the words take, about."""
        per_word = self._slots.itemsize * 2 + self.key_offsets.itemsize * 2 + 1
        num_tokens = self.token_offsets[self.num_encoded]
        return int(self.key_offsets[self.num_words] + 8 * num_tokens + per_word * self.num_words)

    def find(self, text: Ragged, properties: np.ndarray) -> Found:
        """Cut texts (uint8 UTF-8) into words, which get numbers where they have none."""
        num_bytes = int(text.offsets[-1] - text.offsets[0])
        numbers, starts, ends = np.empty((3, num_bytes), dtype=np.int32)
        first_words = np.zeros(len(text.offsets), dtype=np.int64)
        begins_loose = np.zeros(len(text), dtype=bool)
        state = np.array([0, text.offsets[0], 0, self.num_words], dtype=np.int64)
        while not find_words(
            text.values,
            text.offsets,
            properties,
            self._slots,
            self.key_offsets,
            self.keys,
            self.flags,
            numbers,
            starts,
            ends,
            first_words,
            begins_loose,
            state,
        ):
            self._widen(num_bytes, int(state[3]))
        found, self.num_words = state[2:].tolist()
        return Found(numbers[:found], starts[:found], ends[:found], first_words, begins_loose)

    def _widen(self, num_bytes: int, num_words: int) -> None:
        used = int(self.key_offsets[num_words])
        if used + num_bytes > len(self.keys):
            self.keys = _widened(self.keys, used, 2 * (used + num_bytes))
        if num_words + 1 >= len(self.key_offsets):
            wider = np.zeros(2 * len(self._slots), dtype=np.uint64)
            spread_slots(self._slots, wider)
            self._slots = wider
            self.key_offsets = _widened(self.key_offsets, num_words + 1, len(wider) // 2 + 1)
            self.flags = _widened(self.flags, num_words, len(wider) // 2)

    def append(self, tokens: Ragged) -> None:
        """Give the next words that have no tokens theirs: [tokens, 2] of each."""
        first, count = self.num_encoded, len(tokens)
        used = int(self.token_offsets[first])
        total = used + len(tokens.values)
        if total > len(self.tokens):
            self.tokens = _widened(self.tokens, used, 2 * total)
        if first + count >= len(self.token_offsets):
            self.token_offsets = _widened(self.token_offsets, first + 1, 2 * (first + count) + 1)
        self.tokens[used:total] = tokens.values
        self.token_offsets[first + 1 : first + count + 1] = used + tokens.offsets[1:]
        self.num_encoded += count

    def add_unnamed(self, tokens: np.ndarray) -> int:
        """The number of something that is never looked up, with its tokens."""
        assert self.num_encoded == self.num_words
        self._widen(0, self.num_words)
        self.key_offsets[self.num_words + 1] = self.key_offsets[self.num_words]
        self.flags[self.num_words] = 0
        self.num_words += 1
        self.append(Ragged.of([tokens]))
        return self.num_words - 1

    def word(self, number: int) -> str:
        """The word with a number."""
        return self.keys[self.key_offsets[number] : self.key_offsets[number + 1]].tobytes().decode("utf-8")


def _widened(array: np.ndarray, used: int, size: int) -> np.ndarray:
    wider = np.empty((size, *array.shape[1:]), dtype=array.dtype)
    wider[:used] = array[:used]
    return wider
