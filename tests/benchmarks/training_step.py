"""One training step of the same network at the same batch, against transformers in a plain PyTorch loop."""

from __future__ import annotations

import numpy as np
import torch

from models.config import TransformerConfig
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from pipeline.batches.noise import Noise
from pipeline.batches.packing import Packed
from pipeline.objectives.mlm import MaskedLM, Vocabulary, corrupt
from tests.benchmarks.compare import Comparison, compare, peer_name

BATCH, LENGTH, VOCAB_SIZE = 32, 128, 8192
NETWORK = TransformerConfig(
    vocab_size=VOCAB_SIZE,
    num_layers=4,
    hidden_size=256,
    num_heads=4,
    intermediate_size=1024,
    attention_dropout=0.0,
)


def run() -> list[Comparison]:
    """Tokens per second of forward, backward and AdamW, fp32, two threads, dropout of attention off in both."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.set_num_threads(2)
    batch = _batch()
    ours = MaskedLanguageModel(NETWORK)
    init_weights(ours, 1)
    theirs = RobertaForMaskedLM(
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
    labels = torch.full((BATCH * LENGTH,), -100)
    labels[batch.predicted_positions] = batch.targets
    labels = labels.view(BATCH, LENGTH)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) for model in (ours, theirs)]

    def step_ours() -> None:
        loss, _ = ours(batch.input_ids, batch.predicted_positions, batch.targets, batch.cu_seqlens)
        (loss / batch.num_predicted).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()

    def step_theirs() -> None:
        theirs(input_ids=batch.input_ids, labels=labels).loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()

    return [
        compare(
            "training step, masked LM, 4 layers x 256, 32 x 128",
            peer_name("transformers", "RobertaForMaskedLM in a plain loop"),
            "tokens",
            BATCH * LENGTH,
            step_ours,
            step_theirs,
        )
    ]


def _batch():
    ids = Noise.of("bench").at(np.arange(BATCH * LENGTH, dtype=np.uint64)).integers(VOCAB_SIZE - 5) + 5
    packed = Packed(
        input_ids=ids.reshape(BATCH, LENGTH).astype(np.uint32),
        cu_seqlens=np.arange(0, BATCH * LENGTH + 1, LENGTH, dtype=np.int32),
        sample_ids=np.arange(BATCH, dtype=np.uint64),
        epochs=np.zeros(BATCH, dtype=np.uint64),
    )
    return corrupt(packed, Noise.of("train", 1), MaskedLM(), Vocabulary(VOCAB_SIZE, 4, (0, 1, 2, 3, 4)))
