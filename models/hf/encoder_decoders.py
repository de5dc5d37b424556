"""What encoder-decoders share: their heads, and the token embedding, which files hold under up to three names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.config import TransformerConfig
from models.hf.bert_names import pooled_head
from models.hf.heads import Head
from models.hf.names import Names, module, vocabulary_names

STACKS = ("encoder", "decoder")


def heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    """Tensors of every head."""
    return {
        "seq2seq_lm": vocabulary_names(config),
        "sequence_classification": pooled_head("classification_head.dense", "classification_head.out_proj"),
        "question_answering": module("output", "qa_outputs"),
    }


def with_shared_embedding(tensors: Mapping[str, Tensor], base: str, *, separate: bool) -> dict[str, Tensor]:
    """Leave one name of the embedding that both stacks read: `shared.weight`.

    Args:
        base: what tensor names begin with.
        separate: whether each stack reads its own copy, and `shared.weight` is read by none where there are copies.

    Raises:
        ValueError: the copies differ.
    """
    kept = dict(tensors)
    shared = f"{base}shared.weight"
    copies = {
        name: kept.pop(name) for stack in STACKS if (name := f"{base}{stack}.embed_tokens.weight") in kept
    }
    if separate and len(copies) == len(STACKS):
        kept.pop(shared, None)
    for name, copy in copies.items():
        if not torch.equal(kept.setdefault(shared, copy), copy):
            raise ValueError(
                f"{name} differs from the other input embedding, but encoder and decoder share one in these networks; "
                "a network that was trained with two cannot be read"
            )
    return kept
