"""Sorting by random draws, in compiled loops: what `numpy.argsort` of the same draws gives, in a tenth of its time.

Draws are uniform over 64 bits, so the upper few bits that tell most of them apart nearly sort them: a radix sort by
those (least significant digit first, each pass stable), and neighbours that are still in the wrong order change places.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pipeline.batches.noise_kernels import fold

_SPARE_BITS = 3
"""With 8 times as many slots as draws, few share one."""
_DIGIT_BITS = 10
"""At most: more digits than this are more places to write to than the processor keeps at hand."""


@njit(cache=True, nogil=True)
def sorted_by_draw(state: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """`numbers` ([n] int64, not negative) by rising `Noise(state).at(numbers).bits()`; equal draws stay as they stand.

    Needs 32 bytes for each of them, 8 of which are returned.
    """
    count = len(numbers)
    bits = _SPARE_BITS
    while bits < 64 and (1 << bits) < count << _SPARE_BITS:
        bits += 1
    num_passes = (bits + _DIGIT_BITS - 1) // _DIGIT_BITS
    digit_bits = (bits + num_passes - 1) // num_passes
    mask = np.uint64((1 << digit_bits) - 1)
    places = _first_places(state, numbers, num_passes, digit_bits)

    draws, sorted_numbers = np.empty(count, dtype=np.uint64), np.empty_like(numbers)
    shift = np.uint64(64 - num_passes * digit_bits)
    for i in range(count):
        draw = fold(state, np.uint64(numbers[i]))
        digit = np.int64((draw >> shift) & mask)
        place = places[0, digit]
        places[0, digit] = place + 1
        draws[place], sorted_numbers[place] = draw, numbers[i]
    if num_passes > 1:
        other_draws, other_numbers = np.empty_like(draws), np.empty_like(numbers)
        for number in range(1, num_passes):
            shift = np.uint64(64 - (num_passes - number) * digit_bits)
            for i in range(count):
                digit = np.int64((draws[i] >> shift) & mask)
                place = places[number, digit]
                places[number, digit] = place + 1
                other_draws[place], other_numbers[place] = draws[i], sorted_numbers[i]
            draws, other_draws = other_draws, draws
            sorted_numbers, other_numbers = other_numbers, sorted_numbers
    _finish(draws, sorted_numbers)
    return sorted_numbers


@njit(cache=True, nogil=True)
def _first_places(state: np.uint64, numbers: np.ndarray, num_passes: int, digit_bits: int) -> np.ndarray:
    """[num_passes, digits] int64: how many draws have a smaller digit, for every pass."""
    places = np.zeros((num_passes, 1 << digit_bits), dtype=np.int64)
    mask = np.uint64((1 << digit_bits) - 1)
    for i in range(len(numbers)):
        draw = fold(state, np.uint64(numbers[i]))
        for number in range(num_passes):
            shift = np.uint64(64 - (num_passes - number) * digit_bits)
            places[number, np.int64((draw >> shift) & mask)] += 1
    for number in range(num_passes):
        before = 0
        for digit in range(places.shape[1]):
            own = places[number, digit]
            places[number, digit] = before
            before += own
    return places


@njit(cache=True, nogil=True)
def _finish(draws: np.ndarray, numbers: np.ndarray) -> None:
    """Sort by insertion, in place, what is sorted but for neighbours."""
    for i in range(1, len(draws)):
        draw, number = draws[i], numbers[i]
        k = i
        while k > 0 and draws[k - 1] > draw:
            draws[k], numbers[k] = draws[k - 1], numbers[k - 1]
            k -= 1
        if k < i:
            draws[k], numbers[k] = draw, number
