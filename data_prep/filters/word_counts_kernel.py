"""The compiled loops over the words of one text; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@compiled_loop
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
    slots = np.full(size, -1, np.int32)
    # Of every number: the word's first occurrence, and the high half of its hash.
    firsts, checks = np.empty(len(places), np.int64), np.empty(len(places), np.uint32)
    count = np.int64(0)
    for word in range(len(places)):
        place, end = places[word], ends[word]
        value = _GOLDEN
        for k in range(place, end):
            value = (value + np.uint64(points[k])) * _GOLDEN
        value = (value ^ (value >> _SHIFT)) * _GOLDEN
        check, slot = np.uint32(value >> _SHIFT), value & mask
        while True:
            number = np.int64(slots[slot])
            if number < 0:
                slots[slot], firsts[count], checks[count], numbers[word] = count, word, check, count
                count += 1
                break
            if checks[number] == check:
                other = places[firsts[number]]
                same = ends[firsts[number]] - other == end - place
                k = np.int64(0)
                while same and k < end - place:
                    same = points[other + k] == points[place + k]
                    k += 1
                if same:
                    numbers[word] = number
                    break
            slot = (slot + np.uint64(1)) & mask
    return int(count)


@compiled_loop
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
    # Of every n-gram: its slot, its key, and how often it occurs.
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


@compiled_loop
def repeated_characters(
    points: np.ndarray, places: np.ndarray, ends: np.ndarray, top: np.ndarray, repeated: np.ndarray
) -> int:
    """Number the words of a text and fill in `top` and `repeated` as `ngram_characters` does; returns the characters of
    all words.

    Args:
        points, places, ends: as `number_words` has them.
    """
    numbers, before = np.empty(len(places), np.int64), np.zeros(len(places) + 1, np.int64)
    number_words(points, places, ends, numbers)
    for word in range(len(places)):
        before[word + 1] = before[word] + ends[word] - places[word]
    ngram_characters(numbers, before, top, repeated)
    return int(before[-1])


@compiled_loop
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


@compiled_loop
def count_runs(points: np.ndarray, classes: np.ndarray) -> tuple[int, int]:
    """(Runs of characters other than white space, such runs that hold a letter).

    Args:
        points: [characters] uint32 code points of a text.
        classes: uint8 by code point, the last for all beyond: 1 for white space, 2 for letters.
    """
    beyond = np.int64(len(classes) - 1)
    runs, lettered = np.int64(0), np.int64(0)
    was_inside = has_letter = False
    for place in range(len(points)):
        own = classes[min(np.int64(points[place]), beyond)]
        # Without branches, which no processor could foretell.
        is_inside, is_letter = own != 1, own == 2
        runs += is_inside & (not was_inside)
        lettered += is_letter & (not has_letter)
        has_letter = is_inside & (has_letter | is_letter)
        was_inside = is_inside
    return int(runs), int(lettered)
