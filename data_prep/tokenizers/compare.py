"""How well tokenizers fit a text: what `cloze tokenizer compare` shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from data_prep.ragged import Ragged
from data_prep.tokenizers.fast import agrees_with, make_fast_encoder
from data_prep.tokenizers.reference import Encoder, ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size


@dataclass(frozen=True, slots=True)
class Fit:
    """One tokenizer on one text."""

    vocab_size: int
    tokens: int
    bytes_per_token: float
    """UTF-8 bytes of text for each token: the higher, the shorter the sequences."""
    fertility: float
    """Tokens for each word, words being what white space separates (Rust et al. 2021, section 4.2)."""
    unknown_rate: float
    """Share of the tokens that are the unknown token."""
    exact_round_trips: float
    """Share of the lines that decoding gives back, character by character."""
    encoder: str
    """Encoder for bulk work: `tokenizers`, or a faster library that gives the same ids on these lines."""
    encode_mb_per_s: float
    """Megabytes of text encoded in a second; the best of three."""


def fit(tokenizer_json: str, lines: Sequence[str]) -> Fit:
    """Measure a tokenizer on lines of text; at least one must not be empty."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    cuts = Ragged.of([np.empty(0, dtype=np.int64)] * len(lines))
    texts = pa.array(lines, pa.string())
    reference, fast = ReferenceEncoder(tokenizer_json), make_fast_encoder(tokenizer_json)
    is_fast = fast is not None and agrees_with(fast, reference, texts, cuts)
    encoder: Encoder = fast if fast is not None and is_fast else reference
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ids, _ = encoder.encode(texts, cuts)
        seconds.append(time.perf_counter() - started)
    num_bytes = sum(len(line.encode("utf-8")) for line in lines)
    num_tokens = max(1, len(ids.values))
    decoded = tokenizer.decode_batch(
        [ids[number].tolist() for number in range(len(ids))], skip_special_tokens=False
    )
    unknown = find_special_tokens(tokenizer).get("unk", -1)
    return Fit(
        vocab_size=vocabulary_size(tokenizer),
        tokens=len(ids.values),
        bytes_per_token=num_bytes / num_tokens,
        fertility=len(ids.values) / max(1, sum(len(line.split()) for line in lines)),
        unknown_rate=int((ids.values == unknown).sum()) / num_tokens,
        exact_round_trips=sum(a == b for a, b in zip(decoded, lines, strict=True)) / max(1, len(lines)),
        encoder=encoder.name,
        encode_mb_per_s=num_bytes / 1e6 / min(seconds),
    )
