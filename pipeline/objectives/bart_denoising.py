"""BART: an encoder reads a corrupted text, a decoder writes the original (Lewis et al. 2020, section 2.2).

The five noises are in `kernels/text_noise.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pipeline.objectives.base import Batch
from pipeline.objectives.encoder_decoder import Denoising, assemble_rows
from pipeline.objectives.kernels.text_noise import (
    INSIDE_WORD,
    SPECIAL,
    STARTS_WORD,
    TextNoise,
    denoising_pairs,
)
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.formats import SINGLE_FORMATS
from pipeline.samples.noise import Noise, poisson_table
from pipeline.samples.packed import Packed, Reading


class Infilling(Denoising):
    """Sentence permutation and text infilling, of BART and mBART."""

    permute_sentences: float = Field(default=1.0, ge=0, le=1)
    """Share of the sentences of a text that change places at random."""
    infilling_rate: float = Field(default=0.3, ge=0, le=1)
    """Share of the words that are covered by spans, each replaced by one mask."""
    infilling_mean: float = Field(default=3.0, ge=0.1, le=100)
    """Mean of the Poisson distribution of span lengths, in words; spans of length 0 are masks put between words."""
    overlapping_spans: bool = False
    """Whether spans may lie over each other, as in the released code (fairseq's denoising_dataset.py), which so covers
    27% of the words in place of 30%, and 31% in place of 35%."""
    whole_words: bool = True
    """Whether spans are measured in words; False measures them in tokens."""

    def text_noise(self, vocabulary: Vocabulary) -> TextNoise:
        """The noise of both; BART has more."""
        return TextNoise(
            permuted_share=self.permute_sentences,
            infilling_rate=self.infilling_rate,
            masking_rate=0.0,
            deletion_rate=0.0,
            rotation_probability=0.0,
            span_lengths=poisson_table(self.infilling_mean),
            overlapping_spans=self.overlapping_spans,
            **{role: vocabulary[role] for role in ("bos", "eos", "pad", "mask")},
            kinds=token_kinds(vocabulary, self.whole_words),
        )

    def corrupt_texts(
        self, packed: Packed, noise: Noise, vocabulary: Vocabulary, tags: np.ndarray | None
    ) -> Batch:
        """A micro-batch whose encoder reads every piece corrupted, and whose decoder writes it as it was.

        Args:
            tags: [batch] int64 token that replaces `<s>`, ends every text of a row on both sides and starts the
                decoder; None for `</s>` as the start, and no tags.
        """
        starts = packed.sentence_starts
        if starts is None and self.permute_sentences > 0:
            raise ValueError("sentences cannot be permuted: the samples were read without sentence_starts")
        batch, length = packed.input_ids.shape
        pairs = denoising_pairs(
            packed.input_ids,
            packed.cu_seqlens,
            np.zeros(0, dtype=np.int32) if starts is None else starts,
            noise.at(self.kind, packed.epochs, packed.sample_ids).bits(),
            self.text_noise(vocabulary),
            np.full(batch, -1, dtype=np.int64) if tags is None else tags,
            packed.sources is not None,
        )
        decoder_starts = vocabulary["eos"] if tags is None else tags[pairs.rows]
        rows = assemble_rows(pairs, batch, (length, length), vocabulary["pad"], decoder_starts)
        return replace(rows, sources=packed.sources_at(pairs.origins))


class BartDenoising(Infilling):
    """BART's objective. Noises apply in this order: permutation, infilling, masking, deletion, rotation."""

    kind: Literal["bart_denoising"] = "bart_denoising"
    masking_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of the tokens that become masks one by one."""
    deletion_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of the tokens that are deleted."""
    rotation_probability: float = Field(default=0.0, ge=0, le=1)
    """Probability that a text is rotated to begin with a random token."""

    @model_validator(mode="after")
    def _has_noise(self) -> BartDenoising:
        rates = (self.permute_sentences, self.infilling_rate, self.masking_rate, self.deletion_rate)
        if not any((*rates, self.rotation_probability)):
            raise ValueError("at least one noise must be above 0, such as infilling_rate=0.3")
        return self

    def reading(self, sequence_length: int) -> Reading:
        """Plain text, packed, with its sentences where they are permuted."""
        return Reading(SINGLE_FORMATS, sequence_length, sentence_starts=self.permute_sentences > 0)

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """The mask."""
        return ("<mask>",)

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Corrupt every piece; the decoder starts with `</s>` and writes the whole piece, `<s>` and `</s>` included.

        Encoder and decoder have as many columns as the rows that are read: no noise makes a text longer.
        """
        return self.corrupt_texts(packed, noise, vocabulary, tags=None)

    def text_noise(self, vocabulary: Vocabulary) -> TextNoise:
        """All five noises."""
        return (
            super()
            .text_noise(vocabulary)
            ._replace(
                masking_rate=self.masking_rate,
                deletion_rate=self.deletion_rate,
                rotation_probability=self.rotation_probability,
            )
        )


@lru_cache(maxsize=4)
def token_kinds(vocabulary: Vocabulary, whole_words: bool) -> np.ndarray:
    """`TextNoise.kinds`. Unknown tokens count as text."""
    is_text = ~vocabulary.is_special
    if "unk" in vocabulary.roles:
        is_text[vocabulary["unk"]] = True
    starts_word = vocabulary.starts_word if whole_words else np.ones_like(vocabulary.starts_word)
    return np.where(is_text, np.where(starts_word, STARTS_WORD, INSIDE_WORD), SPECIAL).astype(np.uint8)
