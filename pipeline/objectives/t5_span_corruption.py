"""T5: spans are taken out of the text and written after their sentinels (Raffel et al. 2020, section 3.3.4).

UL2 parametrises the same corruption; the code that both share is here and in `kernels/span_noise.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.objectives.base import Batch
from pipeline.objectives.encoder_decoder import Denoising, TextPairs, assemble_rows
from pipeline.objectives.kernels.span_noise import (
    Denoisers,
    SpanTokens,
    span_corruption_pairs,
    span_counts,
    suffix_limit,
)
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.formats import SINGLE_FORMATS
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading

TIGHT = 8
"""Columns that matrix units take at a time."""


class SpanCorruption(Denoising):
    """T5's objective."""

    kind: Literal["t5_span_corruption"] = "t5_span_corruption"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is taken out."""
    mean_span_length: float = Field(default=3.0, ge=1)
    """Mean length of the spans, in tokens."""
    num_sentinels: int = Field(default=100, ge=1)
    """Tokens `<extra_id_0>`, `<extra_id_1>`, ... of the vocabulary; a text has no more spans than that."""
    final_sentinel: bool = False
    """Whether one more sentinel ends the target before `</s>`, as figure 2 of the paper draws it. The released code
    writes none, because its texts always end with a span; the lengths that T5 states count none either."""

    def reading(self, sequence_length: int) -> Reading:
        """Rows so long that the encoder's text fills its sequence: 569 columns for 512.

        A row has one column that is not of the stream, `<s>` or padding; the other 568 are T5's raw tokens.

        Raises:
            ConfigError: a text could have more spans than there are sentinels.
        """
        return reading_of(self._denoisers(), sequence_length, self.num_sentinels, self.final_sentinel)

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """The sentinels; `<extra_id_0>` is the last id, as in T5's vocabulary."""
        return sentinel_texts(self.num_sentinels)[::-1]

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Take spans out of every piece; the decoder starts with padding, as T5's does, and writes the spans.

        T5 knows no `<s>` and puts no `</s>` between documents: of each piece only the text is taken, and a `</s>` ends
        it. Pieces with less than two tokens of text are left out. A row with a single text that fills it gives exactly
        T5's lengths; other rows are padded to them.
        """
        denoisers = self._denoisers()
        choices = np.zeros(len(packed.input_ids), dtype=np.int64)
        states = noise.at("t5_span_corruption", packed.epochs, packed.sample_ids).bits()
        tokens = span_tokens(vocabulary, self.num_sentinels, self.final_sentinel)
        return corrupt_spans(packed, states, choices, denoisers, tokens)

    def _denoisers(self) -> Denoisers:
        return Denoisers(
            rates=np.asarray([self.rate]),
            mean_lengths=np.asarray([self.mean_span_length]),
            is_suffix=np.zeros(1, dtype=bool),
            free_ends=np.zeros(1, dtype=bool),
            modes=np.full(1, -1, dtype=np.int64),
        )


def corrupt_spans(
    packed: Packed,
    states: np.ndarray,
    choices: np.ndarray,
    denoisers: Denoisers,
    tokens: SpanTokens,
    *,
    tight: bool = False,
) -> Batch:
    """Corrupt every piece by the denoiser of its row.

    Args:
        tight: make encoder and decoder as wide as this batch needs, up to a multiple of TIGHT, instead of as wide as
            any may need.
        states: [batch] uint64 noise of each row.
        choices: [batch] int64 index of each row's denoiser.
    """
    with_origins = packed.sources is not None
    pairs = span_corruption_pairs(
        packed.input_ids, packed.cu_seqlens, states, choices, denoisers, tokens, with_origins
    )
    batch, length = packed.input_ids.shape
    lengths = [longest(denoisers, number, length - 1) for number in range(len(denoisers.rates))]
    widths = max(source for source, _ in lengths), max(target for _, target in lengths)
    widths = widths[0], widths[1] + tokens.final_sentinel
    if tight:
        widths = (
            _tight(widths[0], pairs.source_lengths, pairs),
            _tight(widths[1], pairs.target_lengths, pairs),
        )
    batch_of_rows = assemble_rows(pairs, batch, widths, tokens.pad, tokens.pad)
    return replace(batch_of_rows, sources=packed.sources_at(pairs.origins))


def _tight(most: int, lengths: np.ndarray, pairs: TextPairs) -> int:
    longest_row = int(np.bincount(pairs.rows, weights=lengths, minlength=1).max(initial=1))
    return min(most, -(-longest_row // TIGHT) * TIGHT)


def longest(denoisers: Denoisers, number: int, raw: int) -> tuple[int, int]:
    """Most tokens that a text of `raw` >= 2 tokens gives the encoder and the decoder, with mode token and `</s>`."""
    mode = int(denoisers.modes[number] >= 0)
    if denoisers.is_suffix[number]:
        suffix = suffix_limit.py_func(raw, denoisers.rates[number])
        return raw - 1 + 2 + mode, suffix + 2
    hidden, spans = span_counts.py_func(raw, denoisers.rates[number], denoisers.mean_lengths[number])
    return raw - hidden + spans + 1 + mode, hidden + spans + 1


def reading_of(
    denoisers: Denoisers, sequence_length: int, num_sentinels: int, final_sentinel: bool = False
) -> Reading:
    """Rows of the most raw tokens that give the encoder at most `sequence_length`, whichever the denoiser (as T5's
    `random_spans_helper`), and one more column; at least 3 raw tokens.

    Raises:
        ConfigError: a text could have more spans than there are sentinels.
    """

    def lengths(raw: int) -> list[tuple[int, int]]:
        return [longest(denoisers, number, raw) for number in range(len(denoisers.rates))]

    raw = max(
        bisect_right(range(1 << 40), sequence_length, lo=2, key=lambda raw: max(lengths(raw))[0]) - 1, 3
    )
    counts = zip(denoisers.rates, denoisers.mean_lengths, denoisers.is_suffix, strict=True)
    spans = max(1 if suffix else span_counts.py_func(raw, rate, mean)[1] for rate, mean, suffix in counts)
    if (missing := spans + final_sentinel - num_sentinels) > 0:
        raise ConfigError(
            f"Samples of {raw} tokens have {spans} spans, but there are sentinels for"
            f" {num_sentinels - final_sentinel}.",
            next_step=f"raise objective.num_sentinels by {missing}, or lower batch.sequence_length",
        )
    return Reading(SINGLE_FORMATS, raw + 1, positions=max(map(max, lengths(raw))) + final_sentinel)


def sentinel_texts(count: int) -> tuple[str, ...]:
    """`<extra_id_0>`, `<extra_id_1>`, ..."""
    return tuple(f"<extra_id_{number}>" for number in range(count))


@lru_cache(maxsize=4)
def span_tokens(vocabulary: Vocabulary, num_sentinels: int, final_sentinel: bool = False) -> SpanTokens:
    """The ids that span corruption needs."""
    return SpanTokens(
        bos=vocabulary["bos"],
        eos=vocabulary["eos"],
        pad=vocabulary["pad"],
        sentinels=np.asarray([vocabulary[text] for text in sentinel_texts(num_sentinels)], dtype=np.int64),
        final_sentinel=final_sentinel,
    )
