from __future__ import annotations

import pytest
import torch

from models.functional import dropout
from models.initialization import init_weights
from models.stacks import Encoder


@pytest.fixture(scope="module")
def encoder(small_config, randomise) -> Encoder:
    model = Encoder(small_config()).eval()
    init_weights(model, seed=1)
    randomise(model, 2)
    return model


@torch.no_grad()
def test_given_positions_replace_the_usual_ones(encoder):
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(encoder(tokens, position_ids=torch.arange(3)), encoder(tokens))
    assert not torch.allclose(
        encoder(tokens, position_ids=torch.tensor([[4, 5, 6]])), encoder(tokens), atol=1e-3
    )


def test_compiled_encoder_computes_the_same_without_graph_breaks(encoder):
    tokens = torch.randint(61, (2, 12))
    cu_seqlens = torch.tensor([0, 5, 12, 24], dtype=torch.int32)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(tokens, cu_seqlens=cu_seqlens), encoder(tokens, cu_seqlens=cu_seqlens)
    )


def test_gradient_checkpointing_keeps_fewer_activations(small_config):
    model = Encoder(small_config(num_layers=4)).train()
    tokens = torch.randint(61, (2, 12))

    def saved_elements(checkpointing: bool) -> int:
        model.transformer.gradient_checkpointing = checkpointing
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model(tokens)
        return sum(sizes)

    assert saved_elements(True) < saved_elements(False) / 3


def test_dropout_follows_the_global_seed_in_training_and_is_off_in_evaluation(small_config):
    model = Encoder(small_config(dropout=0.2, attention_dropout=0.2))
    init_weights(model, seed=3)
    tokens = torch.randint(61, (2, 12))

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model(tokens)

    model.train()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.5, 0.9])
def test_share_and_mean_are_those_of_the_probability(probability: float):
    torch.manual_seed(1)
    values = torch.ones(1_000_003)
    kept = dropout(values, probability, True)
    error = 5 * (probability * (1 - probability) / len(values)) ** 0.5 + 1 / 65_536
    assert (kept == 0).float().mean().item() == pytest.approx(probability, abs=error)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)], rel=1e-3)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(2)
    dropped = (dropout(torch.ones(250_000, 4), 0.5, True) == 0).float()
    assert torch.corrcoef(dropped.T).fill_diagonal_(0).abs().max() < 0.01


def test_same_seed_same_mask_and_gradients_follow_it():
    values = torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(values, 0.4, True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(values, 0.4, True))
    first.sum().backward()
    assert torch.equal(values.grad == 0, first == 0)


def test_nothing_is_dropped_in_evaluation_or_without_probability():
    values = torch.randn(4)
    assert dropout(values, 0.5, False) is values
    assert dropout(values, 0.0, True) is values
    assert torch.equal(dropout(values, 0.999_999, True), torch.zeros(4))
