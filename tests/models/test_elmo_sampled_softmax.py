"""The sampled softmax: the full one when everything is drawn, else close to it in its gradient."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.elmo.encoder import read_sentences
from models.elmo.language_model import ElmoLanguageModel, choose_candidates, sampled_cross_entropy
from models.initialization import init_weights
from models.losses import EACH
from tests.models.materials import tiny_elmo

WORDS, WIDTH, PREDICTED = 400, 12, 30


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a softmax, and targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(PREDICTED, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, generator=generator).mul(0.4).requires_grad_()
    bias = torch.randn(WORDS, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(WORDS, (PREDICTED,), generator=generator)


def sampled(problem: tuple[Tensor, ...], negatives: Tensor, log_count: float) -> Tensor:
    hidden, weight, bias, targets = problem
    counts = torch.full((len(targets),), log_count), torch.full((len(negatives),), log_count)
    candidates = choose_candidates(weight, bias, targets, counts[0], negatives, counts[1])
    loss, each = sampled_cross_entropy(hidden, candidates, torch.arange(len(targets)), targets)
    torch.testing.assert_close(each.sum(), loss.detach())
    assert not each.requires_grad
    return loss


def test_with_all_words_drawn_it_is_the_full_softmax_with_its_gradients(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    found = sampled(problem, torch.randperm(WORDS, generator=torch.Generator().manual_seed(1)), 0.0)
    expected = F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    for grad, full in zip(
        torch.autograd.grad(found, problem[:3]), torch.autograd.grad(expected, problem[:3]), strict=True
    ):
        torch.testing.assert_close(grad, full, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("drawn", "allowed"), [(40, 0.15), (200, 0.03)])
def test_expected_gradient_approaches_that_of_the_full_softmax(
    problem: tuple[Tensor, ...], drawn: int, allowed: float
):
    hidden, weight, bias, targets = problem
    full = torch.autograd.grad(F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum"), hidden)[
        0
    ]
    generator = torch.Generator().manual_seed(2)
    mean = torch.zeros_like(full)
    for _ in range(400):
        negatives = torch.randperm(WORDS, generator=generator)[:drawn]
        # Every word is drawn with the same probability.
        loss = sampled(problem, negatives, np.log(drawn / WORDS))
        mean += torch.autograd.grad(loss, hidden)[0] / 400
    assert ((mean - full).norm() / full.norm()).item() < allowed


def test_target_that_was_drawn_does_not_count_twice(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    for number in range(3):
        alone = hidden[number : number + 1], weight, bias, targets[number : number + 1]
        assert sampled(alone, targets[number : number + 1], 0.0).item() == 0.0


def test_evaluation_is_over_all_words_whatever_was_drawn():
    config = tiny_elmo(vocab_size=50, max_characters=10, dropout=0.0)
    model = ElmoLanguageModel(config)
    init_weights(model, 1)
    batch = {
        **read_sentences([["a", "b", "c"]], 10)._asdict(),
        "word_ids": torch.tensor([0, 7, 8, 9, 2]),
        "predicted_positions": torch.arange(4),
    }
    drawn = {
        "log_counts": torch.zeros(5),
        "negatives": torch.tensor([11, 12, 13]),
        "negative_log_counts": torch.zeros(3),
    }
    model.eval()
    full, correct = model(**batch)
    ignoring, _ = model(**batch, **drawn)
    assert correct.keys() == {"forward", "backward", EACH}
    assert all(torch.equal(full[term], ignoring[term]) for term in full)
    model.train()
    losses, beside = model(**batch, **drawn)
    assert beside.keys() == {EACH}
    torch.testing.assert_close(beside[EACH].sum(), losses["forward"].detach())
    assert all(losses[term] < full[term] for term in full)
    losses["forward"].backward()
    assert model.softmax.weight.grad is not None
    touched = model.softmax.weight.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == [2, 7, 8, 9, 11, 12, 13]


def test_network_loss_is_the_cross_entropy_of_its_logits():
    config = tiny_elmo(vocab_size=20, max_characters=8, dropout=0.0)
    model = ElmoLanguageModel(config)
    init_weights(model, 2)
    inputs = read_sentences([["x", "y"], ["z"]], 8)
    ids = torch.tensor([0, 5, 6, 2, 0, 7, 2])
    losses, _ = model(**inputs._asdict(), word_ids=ids, predicted_positions=torch.tensor([0, 1, 2, 4, 5]))
    layers = model.encoder(*inputs)[-1]
    left, right = (model.softmax(half) for half in layers.chunk(2, dim=-1))
    forward = F.cross_entropy(left[[0, 1, 2, 4, 5]], torch.tensor([5, 6, 2, 7, 2]), reduction="sum")
    backward = F.cross_entropy(right[[3, 2, 1, 6, 5]], torch.tensor([6, 5, 0, 7, 0]), reduction="sum")
    torch.testing.assert_close(losses["forward"], forward)
    torch.testing.assert_close(losses["backward"], backward)
