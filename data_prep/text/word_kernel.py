"""The compiled loops over words: what words are, where, and how much of a text repeats.

They call no function of another file, so numba's cache is never stale.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_SEPARATOR, _IGNORED = np.uint32(0), np.uint32(0xFFFFFFFF)
_EXPANDS, _FIRST, _CODE = np.uint32(1 << 31), np.uint32(1 << 30), np.uint32((1 << 21) - 1)
_KIND = np.uint32(24)
_JOINS, _STANDS_ALONE, _JAMO = np.uint32(1), np.uint32(2), np.uint32(4)
_NOT_JOINING = np.uint32(2 << 24)
"""The lowest entry that is neither a separator nor a character that joins others."""
_SYLLABLES, _LEADING, _VOWELS, _TRAILING = 0xAC00, 0x1100, 0x1161, 0x11A7
"""First code points of Korean syllables and their parts (Unicode Standard, section 3.12)."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _compose(before: np.uint32, jamo: np.uint32) -> np.uint32:
    """The Korean syllable of a vowel or trailing consonant and the character before it; 0 where they make none."""
    lead, vowel, tail = np.int64(before) - _LEADING, np.int64(jamo) - _VOWELS, np.int64(jamo) - _TRAILING
    if 0 <= lead < 19 and 0 <= vowel < 21:
        return np.uint32(_SYLLABLES + (lead * 21 + vowel) * 28)
    syllable = np.int64(before) - _SYLLABLES
    if 0 <= syllable < 11172 and syllable % 28 == 0 and 0 < tail < 28:
        return np.uint32(_SYLLABLES + syllable + tail)
    return _SEPARATOR


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def hash_runs(codes: np.ndarray, starts: np.ndarray, ends: np.ndarray, hashes: np.ndarray) -> None:
    """Fill in a uint64 hash of each run of uint32 codes, from `starts[i]` to before `ends[i]`."""
    for run in range(len(hashes)):
        value = _GOLDEN
        for place in range(starts[run], ends[run]):
            value = (value ^ np.uint64(codes[place])) * _GOLDEN
            value ^= value >> np.uint64(29)
        hashes[run] = value


# -- counts that filters read --------------------------------------------------------------------------------

_SHIFT = np.uint64(32)


@njit(cache=True, nogil=True)
def ngram_characters(numbers: np.ndarray, before: np.ndarray, top: np.ndarray, repeated: np.ndarray) -> None:
    """Fill in, for each n from 2 on, how many characters of words are inside repeated n-grams.

    An n-gram can only be repeated where its first n-1 words are, so each length looks only at the places that the one
    before has left: work shrinks fast on ordinary text.

    Args:
        numbers: [words] int64, equal for equal words, each less than the number of words.
        before: [words + 1] int64 characters of all words before each.
        top: [largest n + 1] int64: characters inside the n-gram that occurs most often, the longest of several, and of
            those the first; overlaps count once.
        repeated: [largest n + 1] int64: characters inside any n-gram that occurred before; overlaps count once.
    """
    num_words = len(numbers)
    starts, groups = np.arange(num_words), numbers.copy()
    size, shift = np.int64(16), np.uint64(60)
    while size < 2 * num_words:
        size *= 2
        shift -= np.uint64(1)
    slots = np.full(size, -1, np.int32)
    # For each n-gram: slot, key and count.
    used, keys = np.empty(num_words, np.int64), np.empty(num_words, np.int64)
    counts = np.empty(num_words, np.int32)
    for n in range(2, len(top)):
        mask, num_groups, kept = np.uint64(size - 1), np.int64(0), np.int64(0)
        for i in range(len(starts)):
            start = starts[i]
            if start + n > num_words:
                break
            # Both factors are below the number of words, so a pair is one int64 and equal pairs are equal n-grams.
            key = groups[i] * num_words + numbers[start + n - 1]
            mixed = np.uint64(key) * _GOLDEN
            slot = ((mixed ^ (mixed >> _SHIFT)) * _GOLDEN) >> shift
            group = np.int64(slots[slot])
            while group >= 0 and keys[group] != key:
                slot = (slot + np.uint64(1)) & mask
                group = np.int64(slots[slot])
            if group < 0:
                group = num_groups
                slots[slot], used[group], keys[group], counts[group] = group, slot, key, 0
                num_groups += 1
            groups[i] = group
            counts[group] += 1
            kept += 1
        for group in range(num_groups):
            slots[used[group]] = -1
        best, best_count, best_size = np.int64(-1), np.int64(1), np.int64(0)
        done, inside, num_left = np.int64(0), np.int64(0), np.int64(0)
        # From here on `used` marks the n-grams that have occurred.
        used[:num_groups] = 0
        for i in range(kept):
            group, start = groups[i], starts[i]
            if counts[group] < 2:
                continue
            characters = before[start + n] - before[start]
            if counts[group] > best_count or (counts[group] == best_count and characters > best_size):
                best, best_count, best_size = group, counts[group], characters
            if used[group]:
                inside += before[start + n] - before[max(start, done)]
                done = start + n
            used[group] = 1
            starts[num_left], groups[num_left] = start, group
            num_left += 1
        starts, groups = starts[:num_left], groups[:num_left]
        repeated[n] = inside
        done = inside = np.int64(0)
        for i in range(num_left):
            if groups[i] == best:
                inside += before[starts[i] + n] - before[max(starts[i], done)]
                done = starts[i] + n
        top[n] = inside
        if num_left == 0:
            break
