from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.losses import EACH
from models.span_boundary import SpanBoundaryLanguageModel
from tests.models.conftest import learn

# Spans 2..4 of the first row and 9..9 of the second, in rows of 8.
PREDICTED = torch.tensor([2, 3, 4, 11])
LEFT = torch.tensor([1, 1, 1, 10])
RIGHT = torch.tensor([5, 5, 5, 12])
READ = torch.tensor([1, 2, 3, 4, 5, 10, 11, 12])
OFFSETS = torch.tensor([0, 1, 2, 0])
TARGETS = torch.tensor([7, 8, 9, 10])
BATCH = {
    "predicted_positions": PREDICTED,
    "targets": TARGETS,
    "read_positions": READ,
    "left_positions": LEFT,
    "right_positions": RIGHT,
    "span_offsets": OFFSETS,
}


@pytest.fixture
def input_ids() -> torch.Tensor:
    return torch.randint(61, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(small_config, randomise) -> SpanBoundaryLanguageModel:
    network = SpanBoundaryLanguageModel(small_config(), 6).eval()
    init_weights(network, seed=1)
    randomise(network, 2)
    return network


def test_loss_is_that_of_the_formula(model, input_ids):
    losses, correct = model(input_ids, **BATCH)
    x = model.encoder(input_ids).flatten(0, 1)
    head, weight = model.boundary_head, model.encoder.embeddings.token_weight
    logits = []
    for left, right, offset in zip(LEFT, RIGHT, OFFSETS, strict=True):
        h0 = torch.cat([x[left], x[right], head.places.weight[offset]])
        h1 = head.first_norm(F.gelu(head.first.weight @ h0 + head.first.bias))
        y = head.second_norm(F.gelu(head.second.weight @ h1 + head.second.bias))
        logits.append(weight @ y + head.decoder.bias)
    logits = torch.stack(logits)
    torch.testing.assert_close(losses["sbo"], F.cross_entropy(logits, TARGETS, reduction="sum"))
    assert correct["sbo"].item() == (logits.argmax(-1) == TARGETS).sum()


def test_boundary_loss_never_uses_the_hidden_states_of_the_span_itself(model, input_ids):
    before, _ = model(input_ids, **BATCH)

    def disturb(_module, _inputs, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.index_fill(0, torch.searchsorted(READ, PREDICTED), 9.0)

    with model.encoder.register_forward_hook(disturb):
        after, _ = model(input_ids, **BATCH)
    assert torch.equal(before["sbo"], after["sbo"])
    assert not torch.equal(before["mlm"], after["mlm"])


def test_places_in_the_span_are_told_apart(model, input_ids):
    before, _ = model(input_ids, **BATCH)
    after, _ = model(input_ids, **{**BATCH, "span_offsets": OFFSETS.flip(0)})
    assert not torch.equal(before["sbo"], after["sbo"])


def test_masked_loss_and_names_are_those_of_the_masked_language_model(model, small_config, input_ids):
    plain = MaskedLanguageModel(small_config()).eval()
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("boundary_")}
    plain.load_state_dict(own, strict=True)
    losses, _ = model(input_ids, **BATCH)
    expected, _ = plain(input_ids, PREDICTED, TARGETS)
    assert torch.equal(losses["mlm"], expected["mlm"])


def test_every_parameter_learns(model, input_ids):
    losses, _ = model(input_ids, **BATCH)
    (losses["mlm"] + losses["sbo"]).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_without_places_there_is_no_boundary_head(small_config, input_ids):
    model = SpanBoundaryLanguageModel(small_config(), None, pair="nsp").eval()
    losses, correct = model(
        input_ids, PREDICTED, TARGETS, torch.tensor([0, 2, 3, 4, 8, 11]), pair_labels=torch.tensor([0, 1])
    )
    assert losses.keys() == correct.keys() - {EACH} == {"mlm", "nsp"}


def test_both_heads_learn_by_heart(small_config, input_ids):
    model = SpanBoundaryLanguageModel(small_config(dropout=0.0, attention_dropout=0.0), 6).train()
    init_weights(model, seed=0)
    losses, correct = learn(model, lambda: model(input_ids, **BATCH), 60, mlm=1.0, sbo=1.0)
    assert {term: correct[term].item() for term in losses} == {"mlm": 4, "sbo": 4}
    torch.testing.assert_close(correct[EACH].sum(), losses["mlm"].detach())
    assert sum(losses.values()) < 0.5
