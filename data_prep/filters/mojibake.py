"""Where a text may hold mojibake: pairs of characters without which ftfy's detector finds nothing.

The detector is one expression of some forty alternatives, each of which is tried at every character. Of each
alternative two neighbouring characters are looked for here, all at once; a line without any such pair is in order.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import numpy as np

_BEYOND = 0x10000
"""Stands for all code points from here on: the detector names none, and a letter is all that one of them can be."""
_TOKEN = re.compile(r"#[^\n]*|[ \t\n\r\f\v]+|(\[(?:\\.|[^\]\\])*\]|\\x..|\\.|.)(\?)?", re.DOTALL)
"""Of an expression in verbose form: a comment, white space, or what matches one character."""


def find_suspect(points: np.ndarray, start: int) -> int:
    """The first place from `start` on at which mojibake may begin, or may have begun up to five characters before;
    -1 where there is none.

    Args:
        points: [characters] uint32 code points of a text.
    """
    from data_prep.filters.character_kernel import find_pair

    return find_pair(points, start, *_pairs())


@cache
def _pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """([code points + 2] uint8 classes of characters, [classes, classes] bool: which may follow each other, the first
    class that begins a pair)."""
    from ftfy.badness import BADNESS_RE

    every = "".join(map(chr, range(_BEYOND + 1)))
    chosen = [_rarest_pair(atoms, every) for atoms in _alternatives(BADNESS_RE.pattern)]
    firsts, seconds = (np.stack(side) for side in zip(*chosen, strict=True))
    bits = np.ascontiguousarray(np.packbits(np.concatenate([firsts, seconds]), axis=0).T)
    _, examples, classes = np.unique(
        bits.view(f"V{bits.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    assert len(examples) <= 256
    pairs = (firsts[:, examples].T.astype(np.int32) @ seconds[:, examples]) > 0
    # Classes are sorted by the pairs that they begin: first those of most characters, which begin none.
    return classes.astype(np.uint8), pairs, int(np.argmax(pairs.any(axis=1)))


def _alternatives(pattern: str) -> list[list[tuple[str, bool]]]:
    """(What matches one character, whether it must be there) in order, for each alternative."""
    alternatives: list[list[tuple[str, bool]]] = [[]]
    for match in _TOKEN.finditer(pattern):
        if match[1] == "|":
            alternatives.append([])
        elif match[1] and match[1] != "^":
            alternatives[-1].append((match[1], not match[2]))
    return [atoms for atoms in alternatives if atoms]


def _rarest_pair(atoms: list[tuple[str, bool]], every: str) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of characters, [code points + 2] bool, of which one of the first is followed by one of the second
    wherever the alternative matches."""
    sets = [_members(atom, every) for atom, _ in atoms]
    pairs = [
        (first, second)
        for number, (first, second) in enumerate(pairwise(sets))
        if atoms[number][1] and atoms[number + 1][1]
    ]
    if not pairs:
        return sets[0], np.ones_like(sets[0])
    return min(pairs, key=lambda pair: int(pair[0].sum()) * int(pair[1].sum()))


def _members(atom: str, every: str) -> np.ndarray:
    """[code points + 2] bool, the last for the end of a text, which is no character."""
    members = np.zeros(len(every) + 1, bool)
    for match in re.finditer(f"{atom}+", every):
        members[slice(*match.span())] = True
    return members
