"""The batch and the vocabulary on which noises are timed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from pipeline.objectives.vocabulary import Vocabulary, make_vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

BATCH, VOCAB_SIZE = 256, 50_265
SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
BOS, PAD, EOS, UNK, MASK = range(len(SPECIAL))
SENTENCE = 20
"""Tokens of a sentence."""


def packed_rows(length: int) -> Packed:
    """Rows of one text each, `<s> ... </s>`, that begin with a word."""
    count = VOCAB_SIZE - len(SPECIAL)
    ids = Noise.of("bench").at(np.arange(BATCH * length, dtype=np.uint64)).integers(count) + len(SPECIAL)
    ids = ids.reshape(BATCH, length).astype(np.uint32)
    ids[:, 0], ids[:, -1] = BOS, EOS
    ids[:, 1] += 10 - ids[:, 1] % 10
    starts = np.arange(1, length - 1, SENTENCE)
    return Packed(
        input_ids=ids,
        cu_seqlens=np.arange(0, BATCH * length + 1, length, dtype=np.int32),
        sample_ids=np.arange(BATCH, dtype=np.uint64),
        epochs=np.zeros(BATCH, dtype=np.uint64),
        sentence_starts=(np.arange(BATCH)[:, None] * length + starts).ravel().astype(np.int32),
    )


def vocabulary(extra_tokens: Sequence[str] = ()) -> Vocabulary:
    """Byte-pair tokens of which seven in ten begin a word, about as in English text."""
    words = (f"{'Ġ' if number % 10 < 7 else ''}w{number}" for number in range(len(SPECIAL), VOCAB_SIZE + 10))
    ids = {text: number for number, text in enumerate([*SPECIAL.values(), *words])}
    parts = {"model": {"type": "BPE", "vocab": ids, "merges": []}, "added_tokens": []}
    return make_vocabulary(
        orjson.dumps(parts).decode(), {role: ids[text] for role, text in SPECIAL.items()}, extra_tokens
    )
