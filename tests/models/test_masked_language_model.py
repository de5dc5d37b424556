from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from tests.models.conftest import learn

CU_SEQLENS = torch.tensor([0, 7, 12, 24], dtype=torch.int32)
PREDICTED = torch.tensor([1, 4, 11, 20, 23])


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request, small_config, randomise) -> MaskedLanguageModel:
    network = MaskedLanguageModel(small_config(tie_embeddings=request.param)).eval()
    init_weights(network, seed=1)
    randomise(network, 2)
    return network


def predict(model: MaskedLanguageModel, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    losses, correct = model(*args)
    return losses["mlm"], correct["mlm"]


@pytest.fixture
def input_ids() -> torch.Tensor:
    return torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))


def test_loss_is_the_summed_cross_entropy_at_predicted_positions(model, input_ids):
    logits = model.logits(input_ids, cu_seqlens=CU_SEQLENS).flatten(0, 1)[PREDICTED]
    targets = logits.argmax(-1)
    targets[1:3] = (targets[1:3] + 1) % 61
    loss, correct = predict(model, input_ids, PREDICTED, targets, CU_SEQLENS)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets, reduction="sum"))
    assert (loss.dtype, loss.shape, correct.dtype, correct.item()) == (torch.float32, (), torch.int64, 3)


def test_only_predicted_positions_reach_the_vocabulary_projection(model, input_ids):
    seen = []
    model.head.dense.register_forward_hook(lambda _module, args, _out: seen.append(args[0].shape))
    predict(model, input_ids, PREDICTED, PREDICTED, CU_SEQLENS)
    assert seen == [(5, 16)]


def test_gradients_reach_only_the_documents_that_are_predicted(model, input_ids):
    embedded = []
    model.encoder.embeddings.register_forward_hook(lambda _m, _a, hidden: embedded.append(hidden))
    loss, _ = predict(model, input_ids, torch.tensor([8, 10]), torch.tensor([3, 4]), CU_SEQLENS)
    embedded[0].retain_grad()
    loss.backward()
    reached = embedded[0].grad.abs().sum(-1).flatten() > 0
    assert reached.nonzero().flatten().tolist() == [7, 8, 9, 10, 11]
    positions = model.encoder.embeddings.positions.weight.grad.abs().sum(-1) > 0
    assert positions.nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_every_parameter_learns(model, input_ids):
    loss, _ = predict(model, input_ids, PREDICTED, PREDICTED, CU_SEQLENS)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_tied_embedding_has_one_name_and_stays_tied_on_every_device(small_config):
    with torch.device("meta"):
        model = MaskedLanguageModel(small_config())
    model.to_empty(device="cpu")
    init_weights(model, seed=0)
    assert [name for name, tensor in model.state_dict().items() if tensor.shape == (61, 16)] == [
        "encoder.embeddings.tokens.weight"
    ]
    hidden = torch.randn(1, 16)
    before = model.head(hidden, model.encoder.embeddings.tokens.weight)
    with torch.no_grad():
        model.encoder.embeddings.tokens.weight.mul_(2)
    after = model.head(hidden, model.encoder.embeddings.tokens.weight)
    torch.testing.assert_close(after, 2 * before)


def test_batch_without_predictions_costs_nothing_and_still_has_gradients(model, input_ids):
    nothing = torch.empty(0, dtype=torch.int64)
    loss, correct = predict(model, input_ids, nothing, nothing, CU_SEQLENS)
    loss.backward()
    assert (loss.item(), correct.item()) == (0.0, 0)
    assert model.encoder.embeddings.tokens.weight.grad.abs().sum() == 0


def test_fresh_network_predicts_almost_uniformly(small_config, input_ids):
    model = MaskedLanguageModel(small_config()).eval()
    init_weights(model, seed=0)
    loss, _ = predict(model, input_ids, PREDICTED, PREDICTED, CU_SEQLENS)
    assert loss.item() / len(PREDICTED) == pytest.approx(math.log(61), rel=0.05)


def test_bfloat16_network_sums_its_loss_in_float32(model, input_ids):
    exact, _ = predict(model, input_ids, PREDICTED, PREDICTED, CU_SEQLENS)
    loss, _ = predict(model.bfloat16(), input_ids, PREDICTED, PREDICTED, CU_SEQLENS)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)


def test_masked_language_model_learns_by_heart(small_config, input_ids):
    model = MaskedLanguageModel(small_config(dropout=0.0, attention_dropout=0.0)).train()
    init_weights(model, seed=0)
    targets = torch.tensor([9, 8, 7, 6, 5])
    losses, correct = learn(model, lambda: model(input_ids, PREDICTED, targets, CU_SEQLENS), 60, mlm=1.0)
    assert (correct["mlm"].item(), losses["mlm"].item() < 0.5) == (5, True)
