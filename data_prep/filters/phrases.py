"""Search for lines that may hold one of some phrases, in capitals or not, in one pass over the characters of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from data_prep.text.words import points_of

_CASED = 0x20000
"""Beyond lie no letters with capitals."""
_LINE_FEED, _SEVERAL = 1, 2
"""Classes of characters: what ends lines, and capitals that become several small letters."""
_SIGMAS = str.maketrans("ς", "σ")
"""The neighbours of a capital sigma decide which of the two it becomes."""


class LineScreen:
    """Finds lines for a closer look: all that hold a phrase, or enough of some characters, and hardly any others."""

    def __init__(self, phrases: Sequence[str], characters: str = "", least: int = 0) -> None:
        """
        Args:
            phrases: in lower case.
            least: how many of `characters` a line must hold; 0 for no such rule.
        """
        spelt = [phrase.translate(_SIGMAS) for phrase in phrases]
        letters = sorted({*"".join(spelt), *characters} - {"\n"})
        alphabet = {"\n": _LINE_FEED} | {
            letter: number for number, letter in enumerate(letters, _SEVERAL + 1)
        }
        self._classes = _classes(alphabet)
        words = [[alphabet[letter] for letter in phrase] for phrase in spelt]
        self._counted = np.zeros(len(alphabet) + 2, bool)
        self._counted[[alphabet[character] for character in characters]] = least > 0
        self._transitions = _automaton(words, self._counted)
        self._least = least

    def lines(self, text: str) -> list[int]:
        """Indices of the lines, which line feeds end."""
        from data_prep.text.character_kernel import mark_lines

        numbers = np.empty(text.count("\n") + 1, np.int64)
        arrays = self._classes, self._transitions, self._counted
        return numbers[: mark_lines(points_of(text), *arrays, self._least, numbers)].tolist()


def _classes(alphabet: dict[str, int]) -> np.ndarray:
    """[code points + 1] uint16: of each character the number of its small letter, 0 for all others and beyond."""
    found = [(place, alphabet[small]) for place, small in enumerate(_small_letters()) if small in alphabet]
    found += [(place, _SEVERAL) for place, small in enumerate(_small_letters()) if len(small) > 1]
    found += [(ord(letter), number) for letter, number in alphabet.items()]
    classes = np.zeros(max(place for place, _ in found) + 2, np.uint16)
    for place, number in found:
        classes[place] = number
    return classes


@cache
def _small_letters() -> list[str]:
    """The small letter of every code point."""
    return [chr(place).lower().translate(_SIGMAS) for place in range(_CASED)]


def _automaton(words: list[list[int]], counted: np.ndarray) -> np.ndarray:
    """The automaton of Aho and Corasick (1975), as `mark_lines` reads it.

    Args:
        counted: [classes] bool.
    """
    children: list[dict[int, int]] = [{}]
    ends = [False]
    for word in words:
        state = 0
        for letter in word:
            if letter not in children[state]:
                children[state][letter] = len(children)
                children.append({})
                ends.append(False)
            state = children[state][letter]
        ends[state] = True
    following = np.zeros((len(children), len(counted)), np.int32)
    waiting = [(0, 0)]
    for state, fallback in waiting:
        # Without a transition of its own, a state has that of the longest suffix of what was read.
        waiting += [
            (child, int(following[fallback, letter]) if state else 0)
            for letter, child in children[state].items()
        ]
        following[state] = following[fallback]
        for letter, child in children[state].items():
            following[state, letter] = child
        ends[state] |= ends[fallback]
    is_found = np.array(ends)[following]
    is_found[:, _SEVERAL] = True
    following[:, _LINE_FEED], is_found[:, _LINE_FEED] = 0, False
    needs_look = counted | (np.arange(len(counted)) == _LINE_FEED)
    return (4 * len(counted) * following + 2 * is_found + needs_look).ravel().astype(np.int32)
