"""Words, and when two of them are equal: one definition for filters, deduplication and decontamination.

Letters and digits are folded, so that texts which look the same or were typed in another way have the same words:
compatibility forms (NFKC: full-width letters, ligatures), case, accents and points in either form (NFC, NFD), HTML
entities. Soft hyphens, joiners, marks of direction and other invisible characters change nothing. Everything
else, white space, punctuation and symbols, ends a word; several evaluation sets are tokenised, and `it 's` and `it's`
are the same two words. Where a script has no spaces between words every character with its marks is a word.

Joiners matter to how Persian and Indic words are written, but not to which words they are: all texts are folded
alike, and only equality is asked for.

Filters in a chain look at the same text one after another, so the last answers about one text are kept.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from html.entities import html5

import numpy as np
import regex

FIRST = np.uint32(1 << 30)
"""Set in the code of a word's first character."""

UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3006\u3031-\u3035\u303c\u30fc"
)
"""Scripts that put no spaces between words, and signs that kana and ideographs share, for a class of `regex`."""
_APOSTROPHES = "\u02bb-\u02bd"
"""Letters to Unicode, which people type as they type others: Ukrainian, Hawaiian."""
_IGNORED = r"[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Me}[\p{M}--\p{ccc=0}]]"
"""Changes nothing in the word that it is in: invisible characters, accents and points. Marks that do not change places
with others, such as vowel signs, are letters."""
_ALONE = rf"[[{UNSPACED}]&&[\p{{L}}\p{{Nl}}]--{_IGNORED}]"
"""A word by itself, with the marks after it."""
_ALONE_MARK = rf"[[{UNSPACED}]&&\p{{M}}--{_IGNORED}]"
_JOINING = rf"[[\p{{L}}\p{{M}}\p{{N}}]--{_ALONE}--{_ALONE_MARK}--{_IGNORED}--[{_APOSTROPHES}]]"
"""A word with others of its kind before and after it."""
_JAMO = "[\u1161-\u1175\u11a8-\u11c2]"
"""Vowels and trailing consonants that compose Korean syllables."""
_LETTERS = 0x40000
"""Beyond lie invisible characters, which are ignored, and private ones."""
_INVISIBLE = slice(0xE0000, 0xE1000)
_MAY_FOLD = (*range(0xAC00), *range(0xD7A4, 0x20000), *range(0x2F800, 0x2FA20))
"""The gaps are Hangul syllables (composed from jamo) and ideographs (kept as they are)."""
_EXPANDS = np.uint32(1 << 31)
_IGNORED_ENTRY = np.uint32(0xFFFFFFFF)
_FILLER = 0xAD
"""Replaces the rest of an entity: a soft hyphen, which changes nothing."""
_ENTITY = re.compile(
    r"&(?:amp;|#38;|#[xX]26;)*(#[0-9]{1,7};|#[xX][0-9a-fA-F]{1,6};|[a-zA-Z][a-zA-Z0-9]{1,31};)"
)
"""An HTML entity, escaped any number of times."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of some texts, in order."""

    codes: np.ndarray
    """[characters] uint32: the folded characters of all words; `FIRST` is set where one begins. Equal runs of words are
    equal arrays."""
    starts: np.ndarray
    """[words + 1] int64: word `i` is `codes[starts[i] : starts[i + 1]]`."""
    places: np.ndarray
    """[words] int64: where each word begins in its text, in characters."""
    ends: np.ndarray
    """[words] int64: where each ends in its text, with the marks and invisible characters after it."""
    first_words: np.ndarray
    """[texts + 1] int64: the words of text `t` are those from `first_words[t]` to before `first_words[t + 1]`."""

    @property
    def num_words(self) -> int:
        """Words of all texts."""
        return len(self.places)

    @property
    def counts(self) -> np.ndarray:
        """[texts] int64 words of each text."""
        return np.diff(self.first_words)

    def text_of(self, words: np.ndarray) -> np.ndarray:
        """[n] the text that each of the given words is in."""
        return np.searchsorted(self.first_words, words, side="right") - 1


def code_points(text: str) -> np.ndarray:
    """[characters] uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def split_words(texts: Sequence[str]) -> Words:
    """Cut texts into words."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return split_joined("".join(texts), offsets)


def split_joined(joined: str, offsets: np.ndarray, *, fold_digits: bool = False) -> Words:
    """Cut texts into words that lie end to end.

    Args:
        offsets: [texts + 1] int64: text `t` is `joined[offsets[t] : offsets[t + 1]]`.
        fold_digits: fold every digit to 0.
    """
    from data_prep.text.word_kernel import count_folded, split_points

    points = code_points(joined)
    if "&" in joined:
        points = _without_entities(joined, points, offsets)
    folding = _folding(fold_digits)
    # No character of ASCII is folded to several.
    most = 1 + (len(points) if joined.isascii() else count_folded(points, folding.table, folding.offsets))
    codes = np.empty(most, dtype=np.uint32)
    starts, places, ends = (np.empty(most, dtype=np.int64) for _ in range(3))
    first_words = np.empty(len(offsets), dtype=np.int64)
    num_codes, num_words = split_points(
        points,
        offsets.astype(np.int64),
        folding.table,
        folding.offsets,
        folding.expansions,
        codes,
        starts,
        places,
        ends,
        first_words,
    )
    # Copies: much shorter than what had to be there for the worst text.
    arrays = starts[: num_words + 1].copy(), places[:num_words].copy(), ends[:num_words].copy()
    return Words(codes[:num_codes], *arrays, first_words)


def spell(codes: np.ndarray) -> str:
    """The words that `codes` hold, with a space between them."""
    letters = map(chr, (codes & ~FIRST).tolist())
    return "".join(
        f" {letter}" if first else letter for letter, first in zip(letters, codes >= FIRST, strict=True)
    )[1:]


def _without_entities(joined: str, points: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The code points, with HTML entities replaced by their characters and then fillers."""
    replaced = None
    for match in _ENTITY.finditer(joined):
        start, end = match.span()
        text = int(np.searchsorted(offsets, start, side="right"))
        name = match[1]
        characters = html.unescape(f"&{name}") if name[0] == "#" else html5.get(name)
        if characters is not None and end <= offsets[text]:
            replaced = points.copy() if replaced is None else replaced
            replaced[start:end] = _FILLER
            replaced[start : start + len(characters)] = [ord(character) for character in characters]
    return points if replaced is None else replaced


@dataclass(frozen=True, slots=True)
class _Folding:
    """The fold of every code point."""

    table: np.ndarray
    """[0xE1001] uint32: 0 for what separates words, _IGNORED_ENTRY for what changes nothing; a folded character
    with its kind in bits 24 to 26; or with _EXPANDS a number `i` of several such entries. The last entry is for all
    code points beyond."""
    offsets: np.ndarray
    """[several + 1] int64: number `i` is `expansions[offsets[i] : offsets[i + 1]]`."""
    expansions: np.ndarray
    """uint32 entries, of characters and separators."""


@cache
def _folding(fold_digits: bool) -> _Folding:
    # Lone surrogates are no characters; U+FFFF keeps the numbering.
    every = "".join(chr(n) if not 0xD800 <= n < 0xE000 else "\uffff" for n in range(_LETTERS))
    # Kinds: 1 joins, 2 is a word by itself, 3 extends a 2, 4 composes a syllable with the previous character.
    entries = np.zeros(_INVISIBLE.stop + 1, dtype=np.uint32)
    entries[_INVISIBLE] = _IGNORED_ENTRY
    for kind, pattern in enumerate((_JOINING, _ALONE, _ALONE_MARK, _JAMO), start=1):
        for match in regex.finditer(pattern, every, flags=regex.V1):
            entries[match.start()] = match.start() | kind << 24
    for match in regex.finditer(_IGNORED, every, flags=regex.V1):
        entries[match.start()] = _IGNORED_ENTRY
    table = entries.copy()
    expansions: list[list[int]] = []
    for place in _MAY_FOLD:
        folded = _fold(every[place], fold_digits)
        if folded == every[place]:
            continue
        own = [entry for each in folded if (entry := int(entries[ord(each)])) != _IGNORED_ENTRY]
        if len(own) > 1:
            table[place] = _EXPANDS | len(expansions)
            expansions.append(own)
        else:
            table[place] = own[0] if own else _IGNORED_ENTRY
    sizes = np.array([0, *map(len, expansions)], dtype=np.int64)
    return _Folding(
        table, np.cumsum(sizes), np.array([x for own in expansions for x in own], dtype=np.uint32)
    )


def _fold(character: str, fold_digits: bool) -> str:
    """Its compatibility decomposition without case, with digits of all scripts as 0 to 9."""
    folded, before = character, ""
    while folded != before:
        before = folded
        # Upper case first: some small letters, such as the dotless i, have the capital of another.
        folded = unicodedata.normalize("NFKD", folded.upper().casefold())
    if folded == character and not character.isdecimal():
        return character
    digits = (unicodedata.decimal(each, None) for each in folded)
    return "".join(
        each if digit is None else "0" if fold_digits else str(digit)
        for each, digit in zip(folded, digits, strict=True)
    )


# -- the words and lines of one text, as filters see them ----------------------------------------------------


@lru_cache(maxsize=1)
def word_spans(text: str) -> Words:
    """The words of a text by their places in it.

    Counting characters of scripts without spaces as words makes Chinese or Thai comparable in number, not in length:
    rules about the length of words need other limits there.
    """
    return split_words([text])


@lru_cache(maxsize=1)
def words(text: str) -> tuple[str, ...]:
    """The words of a text as they are written."""
    found = word_spans(text)
    return tuple(map(text.__getitem__, map(slice, found.places.tolist(), found.ends.tolist())))


@lru_cache(maxsize=1)
def lines(text: str) -> tuple[str, ...]:
    """The lines that hold more than white space, without the white space around them."""
    return tuple(line for line in map(str.strip, text.split("\n")) if line)
