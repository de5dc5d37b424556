"""The compiled loops over the words of one text; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@njit(cache=True, nogil=True)
def number_words(points: np.ndarray, places: np.ndarray, ends: np.ndarray, numbers: np.ndarray) -> int:
    """Number words in order of first occurrence, equal ones alike; returns the number of different words.

    Args:
        points: [characters] uint32 code points of a text.
        places, ends: [words] int64: word `i` is `points[places[i] : ends[i]]`.
        numbers: [words] int64, filled in.
    """
    size = np.int64(16)
    while size < 2 * len(places):
        size *= 2
    mask = np.uint64(size - 1)
    # Of every slot: the number of a word, the place of its first occurrence, and the high half of its hash.
    slots, firsts = np.full(size, -1, np.int64), np.empty(size, np.int64)
    checks = np.empty(size, np.uint32)
    count = np.int64(0)
    for word in range(len(places)):
        place, end = places[word], ends[word]
        value = _GOLDEN
        for k in range(place, end):
            value = (value ^ np.uint64(points[k])) * _GOLDEN
            value ^= value >> _SHIFT
        check = np.uint32(value >> _SHIFT)
        slot = value & mask
        while True:
            number = slots[slot]
            if number < 0:
                slots[slot], firsts[slot], checks[slot] = count, word, check
                numbers[word] = count
                count += 1
                break
            if checks[slot] == check:
                first = firsts[slot]
                other = places[first]
                same = ends[first] - other == end - place
                k = np.int64(0)
                while same and k < end - place:
                    same = points[other + k] == points[place + k]
                    k += 1
                if same:
                    numbers[word] = number
                    break
            slot = (slot + np.uint64(1)) & mask
    return int(count)


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
    size = np.int64(16)
    while size < 2 * num_words:
        size *= 2
    keys, ids = np.full(size, -1, np.int64), np.empty(size, np.int64)
    used, counts = np.empty(num_words, np.int64), np.empty(num_words, np.int64)
    for n in range(2, len(top)):
        mask, num_groups, num_used = np.uint64(size - 1), np.int64(0), np.int64(0)
        kept = np.int64(0)
        for i in range(len(starts)):
            start = starts[i]
            if start + n > num_words:
                break
            # Both factors are below the number of words, so a pair is one int64 and equal pairs are equal n-grams.
            key = groups[i] * num_words + numbers[start + n - 1]
            slot = np.uint64(key) * _GOLDEN
            slot = (slot ^ (slot >> _SHIFT)) & mask
            while keys[slot] >= 0 and keys[slot] != key:
                slot = (slot + np.uint64(1)) & mask
            if keys[slot] < 0:
                keys[slot], ids[slot] = key, num_groups
                used[num_used] = slot
                counts[num_groups] = 0
                num_used += 1
                num_groups += 1
            groups[i] = ids[slot]
            counts[ids[slot]] += 1
            kept += 1
        for k in range(num_used):
            keys[used[k]] = -1
        best, best_count, best_size = np.int64(-1), np.int64(1), np.int64(0)
        done, inside, num_left = np.int64(0), np.int64(0), np.int64(0)
        # From here on `used` tells which n-grams have occurred.
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


@njit(cache=True, nogil=True)
def count_listed(
    points: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    listed: np.ndarray,
    bounds: np.ndarray,
    enough: int,
) -> int:
    """How many of some listed words occur in a text; counting stops at `enough`.

    Args:
        points, places, ends: as `number_words` has them.
        listed: uint32 code points of the listed words, all different.
        bounds: [listed words + 1] int64: listed word `i` is `listed[bounds[i] : bounds[i + 1]]`.
    """
    # Nearly all words of a text can be told from the listed ones by their length and the low bits of a character.
    may_begin, seen = np.zeros((32, 64), np.bool_), np.zeros(len(bounds) - 1, np.bool_)
    for number in range(len(seen)):
        if bounds[number] < bounds[number + 1]:
            size = min(bounds[number + 1] - bounds[number], 31)
            may_begin[size, listed[bounds[number]] & np.uint32(63)] = True
    count = np.int64(0)
    for word in range(len(places)):
        if count >= enough:
            break
        place, size = places[word], ends[word] - places[word]
        if not may_begin[min(size, 31), points[place] & np.uint32(63)]:
            continue
        for number in range(len(seen)):
            first = bounds[number]
            if seen[number] or bounds[number + 1] - first != size:
                continue
            k = np.int64(0)
            while k < size and listed[first + k] == points[place + k]:
                k += 1
            if k == size:
                seen[number] = True
                count += 1
                break
    return int(count)


@njit(cache=True, nogil=True)
def count_runs(points: np.ndarray, classes: np.ndarray) -> tuple[int, int]:
    """(Runs of characters other than white space, such runs that hold a letter).

    Args:
        points: [characters] uint32 code points of a text.
        classes: uint8 by code point, the last for all beyond: 1 for white space, 2 for letters.
    """
    beyond = np.int64(len(classes) - 1)
    runs, lettered = np.int64(0), np.int64(0)
    in_run = has_letter = False
    for place in range(len(points)):
        own = classes[min(np.int64(points[place]), beyond)]
        if own == 1:
            in_run = has_letter = False
            continue
        if not in_run:
            runs += 1
            in_run = True
        if own == 2 and not has_letter:
            lettered += 1
            has_letter = True
    return int(runs), int(lettered)
