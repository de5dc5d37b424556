"""mBART: BART's infilling and sentence permutation in many languages (Liu et al. 2020, section 2.1).

Texts end with `</s>` and the tag of their language; the decoder starts with the tag. Languages are drawn by the weights
of `data.stores`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from pipeline.objectives.bart_denoising import Infilling
from pipeline.objectives.base import Batch
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading

_COUNTRIES = {
    "ar": "AR", "cs": "CZ", "de": "DE", "en": "XX", "es": "XX", "et": "EE", "fi": "FI", "fr": "XX", "gu": "IN",
    "hi": "IN", "it": "IT", "ja": "XX", "kk": "KZ", "ko": "KR", "lt": "LT", "lv": "LV", "my": "MM", "ne": "NP",
    "nl": "XX", "ro": "RO", "ru": "RU", "si": "LK", "tr": "TR", "vi": "VN", "zh": "CN",
}  # fmt: skip
"""The country after the ISO 639-1 code in the 25 tags of mBART's published vocabulary."""
_TAG = re.compile(r"[A-Za-z-]+_[A-Z]{2}")


class MBartDenoising(Infilling):
    """mBART's objective."""

    kind: Literal["mbart_denoising"] = "mbart_denoising"
    infilling_rate: float = Field(default=0.35, ge=0, le=1)
    infilling_mean: float = Field(default=3.5, ge=0.1, le=100)

    def reading(self, sequence_length: int) -> Reading:
        """Sentences up to the end of the document or of the sample, in one language."""
        return Reading(
            ("doc_sentences", "full_sentences", "contiguous", "best_fit", "sentences"),
            sequence_length,
            sentence_starts=self.permute_sentences > 0,
            langs=True,
        )

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """A tag for each language of the data, then the mask, as in the published vocabulary."""
        return (*sorted(map(language_tag, set(languages))), "<mask>")

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Corrupt every piece; `<s>` is left out, and the tag ends both texts.

        Encoder and decoder have as many columns as the rows that are read: the tag takes the place of `<s>`.
        """
        # Tags sort as their languages do, so language number i of the data has the i-th tag.
        tags = sorted(role for role in vocabulary.roles if _TAG.fullmatch(role))
        if packed.langs is None or packed.langs.max(initial=0) >= len(tags):
            raise ValueError(
                f"every sample needs a language that has a tag; the vocabulary has {', '.join(tags) or 'none'}"
            )
        of_rows = np.asarray([vocabulary[tag] for tag in tags], dtype=np.int64)[packed.langs]
        return self.corrupt_texts(packed, noise, vocabulary, tags=of_rows)


def language_tag(language: str) -> str:
    """`en` is `en_XX`, `de` is `de_DE`; a language that mBART-25 lacks gets `_XX`."""
    return f"{language}_{_COUNTRIES.get(language, 'XX')}"
