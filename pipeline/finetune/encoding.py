"""Single texts and pairs as token ids with their special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.ragged import Ragged
from pipeline.finetune.forms.classification.settings import Example
from pipeline.finetune.tokenizer import SequenceFormat, TextTokenizer


@dataclass(frozen=True, slots=True)
class EncodedExamples:
    """Labelled sequences."""

    input_ids: Ragged
    """Per example its token ids, int64, special tokens included."""
    segment_ids: Ragged | None
    """Per example the segment of each token, int64; None where the network knows no segments."""
    labels: np.ndarray
    """[examples]: int64 numbers of labels, or float32 numbers to predict."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]: tokens of each."""
        return self.input_ids.lengths

    @property
    def predictions(self) -> np.ndarray:
        """int64 [examples]: one label each."""
        return np.ones(len(self), dtype=np.int64)


def encode_examples(
    tokenizer: TextTokenizer,
    sequences: SequenceFormat,
    examples: Sequence[Example],
    max_length: int,
    label_type: type[np.generic] = np.int64,
) -> EncodedExamples:
    """Encode; no example gets more than `max_length` tokens, special tokens included."""
    first = tokenizer.ids([example.text_a for example in examples])
    paired = [number for number, example in enumerate(examples) if example.text_b is not None]
    second = dict(zip(paired, tokenizer.ids([examples[n].text_b or "" for n in paired]), strict=True))
    rows = [assemble(sequences, ids, second.get(n), max_length) for n, ids in enumerate(first)]
    return EncodedExamples(
        input_ids=Ragged.of([np.array(ids, dtype=np.int64) for ids, _ in rows]),
        segment_ids=Ragged.of([segments_of(len(ids), head) for ids, head in rows])
        if sequences.has_segments
        else None,
        labels=np.asarray([example.label for example in examples], dtype=label_type),
    )


def assemble(
    sequences: SequenceFormat, first: Sequence[int], second: Sequence[int] | None, max_length: int
) -> tuple[list[int], int]:
    """One sequence of at most `max_length` tokens, and the number of tokens before the second text."""
    if second is None:
        kept = max_length - sequences.specials_of_single
        ids = [*sequences.first, *first[:kept], *sequences.last]
        return ids, len(ids)
    kept_first, kept_second = longest_first(len(first), len(second), max_length - sequences.specials_of_pair)
    head = [*sequences.first, *first[:kept_first], *sequences.between]
    return [*head, *second[:kept_second], *sequences.last], len(head)


def segments_of(length: int, boundary: int) -> np.ndarray:
    """int64 [length]: 0 before `boundary` and 1 from there."""
    return (np.arange(length) >= boundary).astype(np.int64)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Numbers of tokens of a pair that are kept when the longer text is cut until both fit.

    Computes in one step the result of removing one token at a time, from the second text when both are equally
    long: `longest_first` in `transformers`.
    """
    if first + second <= budget:
        return first, second
    kept_first = min(first, max(budget - second, (budget + 1) // 2))
    return kept_first, min(second, budget - kept_first)
