"""Masking a 256 x 512 batch, against the collator that most people use."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.batches.noise import Noise
from pipeline.batches.packing import Packed
from pipeline.objectives.mlm import MaskedLM, Vocabulary, corrupt
from tests.benchmarks.compare import Comparison, compare, peer_name

BATCH, LENGTH, VOCAB_SIZE = 256, 512, 50_265


def run() -> list[Comparison]:
    """Tokens per second of dynamic masking, 15% with 80/10/10, one thread."""
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    ids = Noise.of("bench").at(np.arange(BATCH * LENGTH, dtype=np.uint64)).integers(VOCAB_SIZE - 5) + 5
    ids = ids.reshape(BATCH, LENGTH).astype(np.uint32)
    packed = Packed(
        input_ids=ids,
        cu_seqlens=np.arange(0, BATCH * LENGTH + 1, LENGTH, dtype=np.int32),
        sample_ids=np.arange(BATCH, dtype=np.uint64),
        epochs=np.zeros(BATCH, dtype=np.uint64),
    )
    vocabulary = Vocabulary(VOCAB_SIZE, mask=4, special=(0, 1, 2, 3, 4))
    collator = DataCollatorForLanguageModeling(
        PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), **SPECIAL)
    )
    examples = [{"input_ids": row} for row in torch.from_numpy(ids.astype(np.int64))]
    return [
        compare(
            "noising, masked LM, 256 x 512",
            peer_name("transformers", "DataCollatorForLanguageModeling"),
            "tokens",
            BATCH * LENGTH,
            lambda: corrupt(packed, Noise.of("train", 1), MaskedLM(), vocabulary),
            lambda: collator(examples),
        )
    ]


SPECIAL = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def _tokenizer():
    from tokenizers import Tokenizer, models

    words = [*SPECIAL.values(), *(f"w{number}" for number in range(5, VOCAB_SIZE))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    return tokenizer
