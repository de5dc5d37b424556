"""The compiled loops of `words.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop

_SEPARATOR, _IGNORED = np.uint32(0), np.uint32(0xFFFFFFFF)
_EXPANDS, _FIRST, _CODE = np.uint32(1 << 31), np.uint32(1 << 30), np.uint32((1 << 21) - 1)
_KIND = np.uint32(24)
_JOINS, _STANDS_ALONE, _JAMO = np.uint32(1), np.uint32(2), np.uint32(4)
_NOT_JOINING = np.uint32(2 << 24)
"""The lowest entry that is neither a separator nor a character that joins others."""
_SYLLABLES, _LEADING, _VOWELS, _TRAILING = 0xAC00, 0x1100, 0x1161, 0x11A7
"""Where Korean syllables and their parts begin (Unicode Standard, section 3.12)."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled_loop
def count_folded(points: np.ndarray, table: np.ndarray, offsets: np.ndarray) -> int:
    """The most characters that folding can make of `points`; see `split_points`."""
    total = np.int64(0)
    for place in range(len(points)):
        entry = table[min(np.int64(points[place]), len(table) - 1)]
        if entry < _EXPANDS:
            total += 1
        elif entry != _IGNORED:
            number = np.int64(entry & _CODE)
            total += offsets[number + 1] - offsets[number]
    return int(total)


@compiled_loop
def _compose(before: np.uint32, jamo: np.uint32) -> np.uint32:
    """The Korean syllable of a vowel or trailing consonant and the character before it; 0 where they make none."""
    lead, vowel, tail = np.int64(before) - _LEADING, np.int64(jamo) - _VOWELS, np.int64(jamo) - _TRAILING
    if 0 <= lead < 19 and 0 <= vowel < 21:
        return np.uint32(_SYLLABLES + (lead * 21 + vowel) * 28)
    syllable = np.int64(before) - _SYLLABLES
    if 0 <= syllable < 11172 and syllable % 28 == 0 and 0 < tail < 28:
        return np.uint32(_SYLLABLES + syllable + tail)
    return _SEPARATOR


@compiled_loop
def split_points(
    points: np.ndarray,
    text_offsets: np.ndarray,
    table: np.ndarray,
    offsets: np.ndarray,
    expansions: np.ndarray,
    codes: np.ndarray,
    starts: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    first_words: np.ndarray,
) -> tuple[int, int]:
    """Fold characters and cut them into words; returns (characters of words, words).

    Args:
        points: uint32 code points of all texts.
        text_offsets: [texts + 1] int64: text `t` is `points[text_offsets[t] : text_offsets[t + 1]]`.
        table, offsets, expansions: uint32, int64, uint32, of `words._Folding`.
        codes, starts, places, ends, first_words: filled in as `words.Words` has them. The first four have one more
            element than `count_folded` counts.
    """
    num_codes = num_words = np.int64(0)
    beyond, spare = np.int64(len(table) - 1), np.int64(len(ends) - 1)
    for text in range(len(text_offsets) - 1):
        first_words[text] = num_words
        begin = text_offsets[text]
        last_kind = _SEPARATOR
        for place in range(begin, text_offsets[text + 1]):
            entry = table[min(np.int64(points[place]), beyond)]
            if entry < _NOT_JOINING and last_kind <= _JOINS:
                # Nearly everything, and without branches, which no processor could foretell; three times as fast.
                kind = entry >> _KIND
                begins = np.int64(kind & ~last_kind)
                starts[num_words], places[num_words] = num_codes, place - begin
                codes[num_codes] = entry & _CODE | _FIRST * begins
                num_words += begins
                num_codes += kind
                ends[num_words - 1 if kind else spare] = place + 1 - begin
                last_kind = kind
                continue
            if entry == _IGNORED:
                if last_kind:
                    ends[num_words - 1] = place + 1 - begin
                continue
            number = np.int64(entry & _CODE)
            several = entry >= _EXPANDS
            for part in range(offsets[number], offsets[number + 1]) if several else range(1):
                own = expansions[part] if several else entry
                kind = own >> _KIND
                if kind == _JAMO:
                    kind = _JOINS
                    before = codes[num_codes - 1] if last_kind == _JOINS else _SEPARATOR
                    syllable = _compose(before & _CODE, own & _CODE)
                    if syllable:
                        codes[num_codes - 1] = syllable | (before & _FIRST)
                        ends[num_words - 1] = place + 1 - begin
                        continue
                if kind:
                    joins = kind == _JOINS and last_kind != _JOINS
                    begins = kind == _STANDS_ALONE or not last_kind or joins
                    if begins:
                        starts[num_words], places[num_words] = num_codes, place - begin
                        num_words += 1
                    codes[num_codes] = own & _CODE | (_FIRST if begins else _SEPARATOR)
                    num_codes += 1
                    ends[num_words - 1] = place + 1 - begin
                last_kind = kind
    first_words[len(text_offsets) - 1] = num_words
    starts[num_words] = num_codes
    return int(num_codes), int(num_words)


@compiled_loop
def find_words(
    points: np.ndarray, table: np.ndarray, offsets: np.ndarray, expansions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where the words of one text begin and end, as `split_points` has them: ([words] int64, [words] int64).

    Args:
        points: uint32 code points of the text.
        table, offsets, expansions: uint32, int64, uint32, of `words._Folding`.
    """
    most, beyond = 1 + count_folded(points, table, offsets), np.int64(len(table) - 1)
    places, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    num_words, spare, last_kind = np.int64(0), np.int64(most - 1), _SEPARATOR
    for place in range(len(points)):
        entry = table[min(np.int64(points[place]), beyond)]
        if entry < _NOT_JOINING and last_kind <= _JOINS:
            kind = entry >> _KIND
            places[num_words] = place
            num_words += np.int64(kind & ~last_kind)
            ends[num_words - 1 if kind else spare] = place + 1
            last_kind = kind
            continue
        if entry == _IGNORED:
            if last_kind:
                ends[num_words - 1] = place + 1
            continue
        number = np.int64(entry & _CODE)
        several = entry >= _EXPANDS
        for part in range(offsets[number], offsets[number + 1]) if several else range(1):
            kind = (expansions[part] if several else entry) >> _KIND
            # A part of a Korean syllable joins what is before it, with which it makes one or not.
            kind = _JOINS if kind == _JAMO else kind
            if kind:
                if kind == _STANDS_ALONE or not last_kind or (kind == _JOINS and last_kind != _JOINS):
                    places[num_words] = place
                    num_words += 1
                ends[num_words - 1] = place + 1
            last_kind = kind
    return places[:num_words].copy(), ends[:num_words].copy()


@compiled_loop
def hash_runs(codes: np.ndarray, starts: np.ndarray, hashes: np.ndarray) -> None:
    """Fill in a uint64 hash of each run of uint32 codes, from `starts[i]` to before `starts[i + 1]`."""
    for run in range(len(hashes)):
        value = _GOLDEN
        for place in range(starts[run], starts[run + 1]):
            value = (value ^ np.uint64(codes[place])) * _GOLDEN
            value ^= value >> np.uint64(29)
        hashes[run] = value
