"""BERT's two tasks in one network: masked tokens, and whether two segments belong together."""

from __future__ import annotations

import pytest
import torch

from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.span_boundary import SpanBoundaryLanguageModel
from tests.models.conftest import learn

NETWORKS = {
    "masked-lm": lambda config: MaskedLanguageModel(config, pair="nsp"),
    "spans": lambda config: SpanBoundaryLanguageModel(config, None, pair="nsp"),
}
# Pairs `<s> A </s> B </s>` in rows of 10, the second one with two tokens of padding.
INPUT_IDS = torch.tensor([[0, 9, 10, 11, 2, 12, 13, 14, 15, 2], [0, 9, 10, 11, 2, 20, 21, 2, 1, 1]])
BATCH = {
    "predicted_positions": torch.tensor([2, 6, 13, 16]),
    "targets": torch.tensor([30, 31, 32, 33]),
    "cu_seqlens": torch.tensor([0, 10, 18, 20], dtype=torch.int32),
    "segment_ids": (torch.tensor([[0] * 5 + [1] * 5, [0] * 5 + [1] * 3 + [0] * 2])),
    "pair_labels": torch.tensor([0, 1]),
}


READ = {"masked-lm": {}, "spans": {"read_positions": torch.tensor([0, 2, 6, 10, 13, 16])}}


@pytest.mark.parametrize("network", NETWORKS)
def test_both_tasks_are_learned_by_heart(small_config, network):
    model = NETWORKS[network](small_config(num_segments=2, dropout=0.0, attention_dropout=0.0)).train()
    init_weights(model, seed=0)
    batch = BATCH | READ[network]
    losses, correct = learn(model, lambda: model(INPUT_IDS, **batch), 80, mlm=1.0, nsp=1.0)
    assert {term: correct[term].item() for term in losses} == {"mlm": 4, "nsp": 2}
    assert losses["mlm"] + losses["nsp"] < 0.5


@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_segments_are_told_apart_and_rows_judged_one_by_one(small_config, randomise, network):
    model = NETWORKS[network](small_config(num_segments=2)).eval()
    randomise(model, 1)

    def pair_loss(**changes: torch.Tensor) -> torch.Tensor:
        return model(INPUT_IDS, **{**BATCH, **READ[network], **changes})[0]["nsp"]

    first, second = torch.tensor([0, 0]), torch.tensor([1, 1])
    swapped = torch.tensor([1, 0])
    together = pair_loss() + pair_loss(pair_labels=swapped)
    torch.testing.assert_close(pair_loss(pair_labels=first) + pair_loss(pair_labels=second), together)
    assert not torch.allclose(pair_loss(segment_ids=1 - BATCH["segment_ids"]), pair_loss())
