"""What a tokenizer makes of single characters: read off its normalizer and pre-tokenizer when they are first seen."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import regex

from data_prep.tokenizers.lookup_kernel import (
    ALONE,
    APART,
    CLUSTERS,
    INSIDE,
    JOINS_BEFORE,
    JOINS_BEHIND,
    LONG,
    LOOSE,
    WHITE,
    unknown_characters,
)
from data_prep.tokenizers.segment_kernel import BREAK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARK = "▁"
"""SentencePiece's mark for a space."""
_CODE_POINTS = 0x110000
PROBE = "\N{GOTHIC LETTER AHSA}"
"""A letter that no normalisation changes, of so many bytes that what follows is never looked up together with it."""
_EXTENDS = regex.compile(
    r"[\p{M}\p{Grapheme_Cluster_Break=Extend}\p{Grapheme_Cluster_Break=ZWJ}\p{Grapheme_Cluster_Break=SpacingMark}]"
)
"""Characters that are one grapheme with a character before them (Unicode Standard Annex 29, rules GB9 and GB9a)."""
_PRECEDES = regex.compile(r"\p{Grapheme_Cluster_Break=Prepend}")
"""Characters that are one grapheme with a character behind them (rule GB9b)."""
_JAMO = regex.compile(
    r"[\p{Grapheme_Cluster_Break=L}\p{Grapheme_Cluster_Break=V}\p{Grapheme_Cluster_Break=T}]"
)
"""Parts of Korean syllables, which are composed (rules GB6 to GB8)."""


class Characters:
    """Tables by code point, filled in for the characters that texts have."""

    def __init__(self, tokenizer: Tokenizer, steps: frozenset[str]) -> None:
        """Args: steps: types of normalizers, none of which looks further than at a grapheme, or at marks."""
        self._tokenizer = tokenizer
        self._composes = "NFC" in steps
        self._by_grapheme = "Precompiled" in steps
        self.marks_spaces = "Prepend" in steps
        """Whether marks are made of the spaces between pieces, and not put before pieces."""
        self.properties = np.zeros(_CODE_POINTS, dtype=np.uint8)
        """[code points] uint8; see `lookup_kernel.py`."""
        self.first_symbols = np.zeros(_CODE_POINTS, dtype=np.int32)
        self.num_symbols = np.zeros(_CODE_POINTS, dtype=np.uint8)
        """[code points]: what each becomes is so many of `symbols` from `first_symbols` on."""
        self.symbols = np.empty(0, dtype=np.int32)
        """Code points, and BREAK between pieces."""
        (probed,) = self._pieces(PROBE)
        self.marked = probed.startswith(MARK)
        """Whether every piece begins with a mark."""
        self._probed = self._symbols([probed])
        self._spaced = self._pieces(f"{PROBE} {PROBE}")
        self._learn(range(0x80))

    def learn(self, data: np.ndarray) -> None:
        """Fill in the tables for all characters of uint8 UTF-8."""
        found = np.empty(len(data), dtype=np.int32)
        count = unknown_characters(data, self.properties, found)
        self._learn(found[:count].tolist())

    def _learn(self, codes: Any) -> None:
        learned: list[int] = []
        for code in codes:
            kind, symbols = self._read(chr(code))
            self.properties[code] = kind
            self.first_symbols[code] = len(self.symbols) + len(learned)
            self.num_symbols[code] = len(symbols)
            learned += symbols
        self.symbols = np.append(self.symbols, np.array(learned, dtype=np.int32))

    def _read(self, character: str) -> tuple[int, list[int]]:
        """Properties of a character, and its symbols."""
        pieces = self._pieces(f"{PROBE}{character}{PROBE}")
        if character == MARK:
            # At the end of a text SentencePiece takes it for a space.
            return INSIDE | APART | JOINS_BEFORE | JOINS_BEHIND, []
        extends = self._by_grapheme and bool(_EXTENDS.match(character))
        if pieces == self._spaced and not extends:
            return WHITE, []
        symbols = self._symbols(pieces)
        ends = len(self._probed)
        if len(symbols) < 2 * ends or symbols[:ends] != self._probed or symbols[-ends:] != self._probed:
            return INSIDE | APART | JOINS_BEFORE | JOINS_BEHIND, []
        symbols = symbols[ends:-ends]
        if len(symbols) > 2 and symbols[0] == symbols[-1] == BREAK and not self.marked:
            return ALONE, symbols[1:-1]
        return INSIDE | self._neighbourhood(character, symbols), symbols

    def _neighbourhood(self, character: str, symbols: list[int]) -> int:
        """What else a character has to do with the characters beside it."""
        extends, precedes, jamo = (bool(kind.match(character)) for kind in (_EXTENDS, _PRECEDES, _JAMO))
        found = LONG * (len(symbols) > 1 or BREAK in symbols)
        if self._by_grapheme:
            found |= JOINS_BEFORE * extends | JOINS_BEHIND * precedes | CLUSTERS * extends
            found |= LOOSE * (not symbols)
        else:
            # Marks that are left may change places with others.
            last = unicodedata.normalize("NFD", character)[-1]
            found |= LONG * (unicodedata.combining(last) != 0)
            if unicodedata.combining(character):
                found |= LOOSE | APART * (unicodedata.category(character) != "Mn")
        cut = BREAK in symbols and not self.marks_spaces
        return found | APART * (precedes or jamo or cut or (extends and self._composes))

    def _symbols(self, pieces: list[str]) -> list[int]:
        """Code points of pieces without their marks, and BREAK between them."""
        joined: list[int] = []
        for number, piece in enumerate(pieces):
            joined += [BREAK] * (number > 0) + list(map(ord, piece.removeprefix(MARK)))
        return joined

    def _pieces(self, text: str) -> list[str]:
        """The text after normalizer and pre-tokenizer, piece by piece: the input of the model."""
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        assert splitter is not None
        return [piece for piece, _ in splitter.pre_tokenize_str(normalized)]
