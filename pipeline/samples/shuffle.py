"""The order of documents and rows in every epoch: pure functions of (token fingerprint, seed, epoch).

Every epoch shuffles the documents of a store, and then the rows packed from them: long documents fill many rows, which
must not follow each other in training. Nothing is stored. Shuffling is sorting by random draws, in compiled loops: the
order that `numpy.argsort` of the same draws gives, several times as fast.

Draws are uniform over 64 bits, so the few upper bits that distinguish most of them nearly sort them: a radix sort by
those (least significant digit first, each pass stable), and neighbours that are still in the wrong order change places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.noise import Noise, fold

_SPARE_BITS = 3
"""Slots per draw, as a power of 2: with 8 times as many slots as draws, few draws share one."""
_DIGIT_BITS = 10
"""The most bits of a digit: with more, the places to write to no longer fit into the processor's caches."""


def index_type(count: int) -> type[np.signedinteger]:
    """The smaller of int32 and int64 that can number `count` items."""
    return np.int32 if count < 2**31 else np.int64


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """The order of one store's documents and rows."""

    fingerprint: str
    """The token store's fingerprint."""
    seed: int

    def noise(self, purpose: str, epoch: int) -> Noise:
        """The noise for a purpose in an epoch."""
        return Noise.of("order", self.fingerprint, self.seed, purpose, epoch)

    def documents(self, epoch: int, documents: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
        """`documents` (ascending document numbers) in the order of `epoch`; `memory` as in `sorted_by_draw`."""
        return sorted_by_draw(np.uint64(self.noise("documents", epoch).state), documents, memory)

    def rows(self, epoch: int, num_rows: int) -> np.ndarray:
        """[num_rows] int32, or int64 where there are more: the row at each place of `epoch`."""
        rows = np.arange(num_rows, dtype=index_type(num_rows))
        return sorted_by_draw(np.uint64(self.noise("rows", epoch).state), rows)


def sorted_by_draw(state: np.uint64, numbers: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
    """`numbers` ([n] integers, not negative) by rising `Noise(state).at(numbers).bits()`; a stable sort.

    Draws are computed again whenever they are compared, which takes less time than reading them from memory.

    Args:
        memory: [2, n] of the same type, to sort in: the result is `memory[1]`. None takes memory of its own.
    """
    bits = min(len(numbers).bit_length() + _SPARE_BITS, 64)
    num_passes = -(-bits // _DIGIT_BITS)
    # NumPy asks for huge pages, compiled loops do not.
    buffers = [np.empty_like(numbers) for _ in range(min(num_passes, 2))] if memory is None else [*memory]
    first, second = (buffers[0], buffers[-1]) if num_passes % 2 == 0 else (buffers[-1], buffers[0])
    return _sort(state, numbers, num_passes, -(-bits // num_passes), first, second)


@compiled_loop
def _sort(
    state: np.uint64,
    numbers: np.ndarray,
    num_passes: int,
    digit_bits: int,
    found: np.ndarray,
    other: np.ndarray,
) -> np.ndarray:
    """The result of `sorted_by_draw`, in one of the two last arguments."""
    places = _first_places(state, numbers, num_passes, digit_bits)
    mask = np.uint64((1 << digit_bits) - 1)
    for number in range(num_passes):
        shift = np.uint64(64 - (num_passes - number) * digit_bits)
        unsorted = numbers if number == 0 else other
        for i in range(len(numbers)):
            digit = np.int64((fold(state, np.uint64(unsorted[i])) >> shift) & mask)
            found[places[number, digit]] = unsorted[i]
            places[number, digit] += 1
        found, other = other, found
    _finish(state, other)
    return other


@compiled_loop
def _first_places(state: np.uint64, numbers: np.ndarray, num_passes: int, digit_bits: int) -> np.ndarray:
    """[num_passes, digits] int64: the number of draws with a smaller digit, for every pass."""
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


@compiled_loop
def _finish(state: np.uint64, numbers: np.ndarray) -> None:
    """Insertion sort, in place, of numbers that are nearly sorted."""
    largest = np.uint64(0)
    for i in range(len(numbers)):
        number = numbers[i]
        draw = fold(state, np.uint64(number))
        if draw >= largest:
            largest = draw
            continue
        k = i
        while k > 0 and fold(state, np.uint64(numbers[k - 1])) > draw:
            numbers[k] = numbers[k - 1]
            k -= 1
        numbers[k] = number
