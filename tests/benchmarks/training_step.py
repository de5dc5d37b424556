"""One training step of the same network on the same tokens, against transformers in a plain PyTorch loop.

Forward, backward and AdamW, fp32, two threads, dropout of attention off in both. `dense` fills every row; `natural`
has documents of natural lengths, packed here and padded to the longest of the batch there; tokens are real tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.samples.noise import Noise
from tests.benchmarks.harness import Comparison, compare, peer_name

BATCH, LENGTH, VOCAB_SIZE, PAD = 32, 128, 8192, 1
MASKED_SHARE = 0.15
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 4,
    "intermediate_size": 1024,
    "attention_dropout": 0.0,
}
DECODER = {"network": "decoder", "norm": "pre", "embedding_norm": False, "activation": "gelu_tanh"}


def run() -> Iterator[Comparison]:
    """Tokens per second of a step."""
    torch.set_num_threads(2)
    for name, batch in {"dense": [LENGTH] * BATCH, "natural lengths": _natural_lengths()}.items():
        masked = MaskedLanguageModel(TransformerConfig(**SHAPE))
        yield _compare(f"masked LM, {name}", masked, roberta(), _masked, batch)
        causal = CausalLanguageModel(TransformerConfig(**SHAPE, **DECODER))
        yield _compare(f"causal LM, {name}", causal, _gpt2(), _causal, batch)


def roberta() -> nn.Module:
    """The network of `transformers` that has the shape of ours."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=VOCAB_SIZE,
            num_hidden_layers=4,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=514,
            type_vocab_size=1,
            attention_probs_dropout_prob=0.0,
        )
    )


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB_SIZE, n_layer=4, n_embd=256, n_head=4, n_positions=512, attn_pdrop=0.0)
    )


def _compare(
    what: str,
    ours: nn.Module,
    theirs: nn.Module,
    task: Callable[[list[int]], tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]],
    lengths: list[int],
) -> Comparison:
    init_weights(ours, 1)
    packed, padded = task(lengths)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) for model in (ours, theirs)]

    def step_ours() -> None:
        losses, _ = ours(**packed)
        (sum(losses.values()) / len(packed["targets"])).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()

    def step_theirs() -> None:
        theirs(**padded).loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()

    return compare(
        f"training step, {what}, 4 layers x 256, {BATCH} x {LENGTH}",
        peer_name("transformers", f"{type(theirs).__name__} in a plain loop"),
        "tokens",
        sum(lengths),
        step_ours,
        step_theirs,
        rounds=5,
    )


def _natural_lengths() -> list[int]:
    """Lengths of documents that fill a batch of BATCH x LENGTH: log-normal, cut at a row, the last one to fit."""
    lengths: list[int] = []
    row = 0
    for number in range(10_000):
        draw = Noise.of("lengths", number)
        normal = np.sqrt(-2 * np.log1p(-draw.at(0).uniform())) * np.cos(2 * np.pi * draw.at(1).uniform())
        length = int(np.clip(np.exp(3.6 + 0.8 * normal), 8, LENGTH - row))
        lengths.append(length)
        row = (row + length) % LENGTH
        if LENGTH - row < 8:
            lengths[-1] += LENGTH - row
            row = 0
        if row == 0 and sum(lengths) == BATCH * LENGTH:
            return lengths
    raise AssertionError("the lengths do not fill the batch")


def _documents(lengths: list[int]) -> list[torch.Tensor]:
    draws = Noise.of("bench").at(np.arange(sum(lengths), dtype=np.uint64)).integers(VOCAB_SIZE - 5) + 5
    return list(torch.from_numpy(draws).split(lengths))


def _packed(documents: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.cat(documents).view(BATCH, LENGTH)
    boundaries = torch.tensor([0, *np.cumsum([len(each) for each in documents])], dtype=torch.int32)
    return {"input_ids": ids} | ({} if len(documents) == BATCH else {"cu_seqlens": boundaries})


def _padded(documents: list[torch.Tensor], labels: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    mask = pad([torch.ones_like(each) for each in documents])
    return {
        "input_ids": pad(documents, padding_value=PAD),
        "labels": pad(labels, padding_value=-100),
        **({} if mask.all() else {"attention_mask": mask}),
    }


def _masked(lengths: list[int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    documents = _documents(lengths)
    draws = torch.from_numpy(Noise.of("mask").at(np.arange(sum(lengths), dtype=np.uint64)).uniform())
    chosen = draws < MASKED_SHARE
    flat = torch.cat(documents)
    positions = chosen.nonzero().flatten()
    packed = _packed(documents) | {"predicted_positions": positions, "targets": flat[positions]}
    labels = torch.where(chosen, flat, -100).split(lengths)
    return packed, _padded(documents, list(labels))


def _causal(lengths: list[int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    documents = _documents(lengths)
    flat = torch.cat(documents)
    last = torch.zeros(len(flat), dtype=torch.bool)
    last[torch.tensor(lengths).cumsum(0) - 1] = True
    positions = (~last).nonzero().flatten()
    packed = _packed(documents) | {"predicted_positions": positions, "targets": flat[positions + 1]}
    return packed, _padded(documents, documents)
