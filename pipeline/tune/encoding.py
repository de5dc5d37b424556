"""Single texts and pairs as token ids with their special tokens, and rows of ids as arrays of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from data_prep.ragged import Ragged
from pipeline.tasks.forms import Example
from pipeline.tasks.tokenizer import SequenceFormat, TextTokenizer

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded examples to learn from, or to score on: sequences with one prediction each, unless a form says more."""

    input_ids: Ragged
    """Per row its token ids, int64, special tokens included."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: tokens of each row; rows of similar length are batched together."""
        return self.input_ids.lengths

    @property
    def predictions(self) -> np.ndarray:
        """int64 [rows]: predictions that each row's loss sums over; an update divides by their sum."""
        return np.ones(len(self), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EncodedExamples(EncodedRows):
    """Labelled sequences."""

    segment_ids: Ragged | None
    """Per example the segment of each token, int64; None where the network knows no segments."""
    labels: np.ndarray
    """[examples]: int64 indices of labels, or float32 numbers to predict."""


def encode_examples(
    tokenizer: TextTokenizer,
    sequences: SequenceFormat,
    examples: Sequence[Example],
    max_length: int,
    label_type: type[np.generic] = np.int64,
) -> EncodedExamples:
    """Encode; no example gets more than `max_length` tokens, special tokens included."""
    first = tokenizer.rows([example.text_a for example in examples])
    second = tokenizer.rows([example.text_b or "" for example in examples])
    paired = np.array([example.text_b is not None for example in examples], dtype=bool)
    specials = np.where(paired, sequences.specials_of_pair, sequences.specials_of_single)
    kept_first, kept_second = longest_first(
        first.lengths, np.where(paired, second.lengths, 0), max_length - specials
    )
    numbers = np.arange(len(examples))
    begin = np.zeros_like(numbers)
    rows = Ragged.beside(
        [
            repeated(sequences.first, len(examples)),
            first.slices(numbers, begin, kept_first),
            repeated(sequences.between, len(examples)).slices(
                numbers, begin, paired * len(sequences.between)
            ),
            second.slices(numbers, begin, kept_second),
            repeated(sequences.last, len(examples)),
        ]
    )
    heads = len(sequences.first) + kept_first + len(sequences.between)
    return EncodedExamples(
        input_ids=rows,
        segment_ids=segments_of(rows, np.where(paired, heads, rows.lengths))
        if sequences.has_segments
        else None,
        labels=np.asarray([example.label for example in examples], dtype=label_type),
    )


def single_rows(
    sequences: SequenceFormat, texts: Ragged, max_length: int, *, keep_end: bool = False
) -> Ragged:
    """Texts by themselves, each of at most `max_length` tokens with its special tokens.

    Args:
        keep_end: cut long texts at their beginning.
    """
    numbers = np.arange(len(texts))
    kept = np.minimum(texts.lengths, max_length - sequences.specials_of_single)
    body = texts.slices(numbers, texts.lengths - kept if keep_end else np.zeros_like(numbers), kept)
    return Ragged.beside([repeated(sequences.first, len(texts)), body, repeated(sequences.last, len(texts))])


def repeated(tokens: Sequence[int], count: int) -> Ragged:
    """As many rows, each with these tokens, int64."""
    return Ragged(
        np.tile(np.array(tokens, dtype=np.int64), count), np.arange(count + 1, dtype=np.int64) * len(tokens)
    )


def segments_of(rows: Ragged, boundaries: np.ndarray) -> Ragged:
    """For each token 0 before the boundary of its row (int64 [rows]), and 1 from there; int64."""
    place = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths)
    return Ragged((place >= np.repeat(boundaries, rows.lengths)).astype(np.int64), rows.offsets)


def longest_first(first: np.ndarray, second: np.ndarray, budget: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of tokens of pairs that are kept when the longer text is cut until both fit; int64 arrays.

    As `truncation=True` (`longest_first`) in `transformers`, which exports are read with: where both are cut and the
    room is odd, the longer text keeps one token more, or the second where both are equally long. BERT's released code
    gives that token to the first text in any case.
    """
    fits = first + second <= budget
    shorter = np.minimum(np.minimum(first, second), budget // 2)
    longer = budget - shorter
    is_first = first > second
    return (
        np.where(fits, first, np.where(is_first, longer, shorter)),
        np.where(fits, second, np.where(is_first, shorter, longer)),
    )


def pad_rows(
    rows: Ragged, numbers: np.ndarray, fill: int, *, left: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows of different lengths on the right, or on the left.

    Args:
        rows: int64 values.
        numbers: int64 [batch]: the rows to take.
        fill: the padding value.

    Returns:
        int64 [batch, length of the longest], and bool of the same shape that is true at elements of the rows.
    """
    chosen = rows.take(numbers)
    place, lengths = np.arange(chosen.lengths.max()), chosen.lengths[:, None]
    present = place >= len(place) - lengths if left else place < lengths
    padded = np.full(present.shape, fill, dtype=np.int64)
    padded[present] = chosen.values
    return padded, present


def batches_of(rows: Iterable[RowT], size: Callable[[RowT], int], limit: int) -> Iterator[list[RowT]]:
    """Cut rows, or their indices, ascending by size, into batches that, padded to the longest, have at most `limit`."""
    batch: list[RowT] = []
    for row in rows:
        if batch and (len(batch) + 1) * size(row) > limit:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
