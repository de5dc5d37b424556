"""One training step of the same network on the same tokens, against transformers in a plain PyTorch loop.

Forward, backward and AdamW, fp32, two threads, dropout of attention off in both. `dense` fills every row; `natural`
has documents of natural lengths, packed here and padded to the longest of the batch there; tokens are real tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from tests.benchmarks.harness import Comparison, compare, peer_name

BATCH, LENGTH, VOCAB_SIZE, PAD = 32, 128, 8192, 1
MASKED_SHARE = 0.15
SHAPE = TransformerConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    intermediate_size=1024,
    attention_dropout=0.0,
)
DECODER = replace(SHAPE, network="decoder", norm="pre", embedding_norm=False, activation="gelu_tanh")
Inputs = dict[str, torch.Tensor]
Task = Callable[[torch.Tensor, list[int]], tuple[torch.Tensor, torch.Tensor]]


def run() -> Iterator[Comparison]:
    """Tokens per second of a step."""
    torch.set_num_threads(2)
    for name, batch in {"dense": [LENGTH] * BATCH, "natural lengths": _natural_lengths()}.items():
        yield _compare(f"masked LM, {name}", MaskedLanguageModel(SHAPE), roberta(), _masked, batch)
        yield _compare(f"causal LM, {name}", CausalLanguageModel(DECODER), _gpt2(), _causal, batch)


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
    task: Task,
    lengths: list[int],
) -> Comparison:
    init_weights(ours, 1)
    packed, padded = _batches(task, lengths)
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
    """Lengths of documents that fill the rows of a batch: log-normal, the last one of a row to fit."""
    generator, lengths = np.random.Generator(np.random.Philox(1)), []
    for _ in range(BATCH):
        left = LENGTH
        while left:
            length = max(8, int(np.exp(3.6 + 0.8 * generator.standard_normal())))
            lengths.append(length if left - length >= 8 else left)
            left -= lengths[-1]
    return lengths


def _masked(flat: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions that are predicted, and labels as `transformers` takes them."""
    chosen = torch.rand(len(flat)) < MASKED_SHARE
    return chosen.nonzero().flatten(), torch.where(chosen, flat, -100)


def _causal(flat: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    last = torch.tensor(lengths).cumsum(0) - 1
    return torch.from_numpy(np.setdiff1d(np.arange(len(flat)), last)), flat


def _batches(task: Task, lengths: list[int]) -> tuple[Inputs, Inputs]:
    """The same documents, packed for our network and padded for the other."""
    torch.manual_seed(1)
    flat = torch.randint(5, VOCAB_SIZE, (sum(lengths),))
    positions, labels = task(flat, lengths)
    targets = flat[positions] if task is _masked else flat[positions + 1]
    packed = {"input_ids": flat.view(BATCH, LENGTH), "predicted_positions": positions, "targets": targets}
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    padded = {
        "input_ids": pad(flat.split(lengths), padding_value=PAD),
        "labels": pad(labels.split(lengths), padding_value=-100),
    }
    if len(lengths) > BATCH:
        packed["cu_seqlens"] = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        padded["attention_mask"] = pad(torch.ones_like(flat).split(lengths))
    return packed, padded
