from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models.config import TransformerConfig
from models.electra import Electra, replace_tokens
from models.hf.family import TokenIds
from models.hf.heads import generator_part
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from tests.models.conftest import learn
from tests.models.hf_oracle import PaddedBatch, assert_same_outputs, opened_by_transformers

CU_SEQLENS = torch.tensor([0, 7, 10, 12, 24], dtype=torch.int32)
PREDICTED = torch.tensor([1, 4, 13, 20])
TARGETS = torch.tensor([5, 6, 7, 8])
TOKENS = torch.tensor([*range(10), *range(12, 24)])
MASK = 60


@pytest.fixture
def input_ids() -> torch.Tensor:
    ids = torch.randint(60, (2, 12), generator=torch.Generator().manual_seed(0))
    ids.view(-1)[PREDICTED] = MASK
    return ids


@pytest.fixture(params=[None, 8], ids=["same-width", "projected"])
def model(request, small_config, randomise) -> Electra:
    return make(small_config(embedding_size=request.param, num_segments=2), randomise)


def make(config: TransformerConfig, randomise) -> Electra:
    generator = replace(config, hidden_size=4, num_heads=1, embedding_size=config.embedding_width)
    network = Electra(config, generator).eval()
    init_weights(network, seed=1)
    randomise(network, 2)
    return network


def run(model: Electra, input_ids: torch.Tensor, seed: int = 0):
    torch.manual_seed(seed)
    return model(input_ids, PREDICTED, TARGETS, TOKENS, CU_SEQLENS)


def test_embeddings_are_shared_and_have_one_name(model):
    names = [name for name, _ in model.named_parameters() if ".embeddings." in name]
    assert {name for name in names if name.startswith("generator.")} <= {
        "generator.encoder.embeddings.projection.weight",
        "generator.encoder.embeddings.projection.bias",
    }
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert (
        model.generator.encoder.embeddings.token_weight is model.discriminator.encoder.embeddings.token_weight
    )


@pytest.mark.parametrize("part", ["tokens", "positions", "segments", "norm"])
def test_generator_reads_the_discriminators_embeddings(model, input_ids, part):
    before, _ = run(model, input_ids)
    with torch.no_grad():
        getattr(model.discriminator.encoder.embeddings, part).weight[..., 0] += 1.0  # pyright: ignore
    after, _ = run(model, input_ids)
    assert not torch.equal(before["mlm"], after["mlm"])


def test_sharing_survives_the_meta_device(small_config, input_ids):
    config = small_config()
    with torch.device("meta"):
        model = Electra(config, replace(config, hidden_size=4, num_heads=1, embedding_size=16))
    model.to_empty(device="cpu")
    init_weights(model, seed=0)
    losses, _ = run(model.eval(), input_ids)
    assert all(loss.isfinite() for loss in losses.values())
    assert (
        model.generator.encoder.embeddings.token_weight is model.discriminator.encoder.embeddings.token_weight
    )


def test_discriminator_judges_every_token_but_padding(model, input_ids):
    losses, correct = run(model, input_ids, seed=3)
    torch.manual_seed(3)
    sampled = model.generator.sample(model.generator(input_ids, PREDICTED, CU_SEQLENS))
    original = input_ids.flatten().index_copy(0, PREDICTED, TARGETS)
    read = input_ids.flatten().index_copy(0, PREDICTED, sampled)
    labels = (read != original).float()[TOKENS]
    scores = model.discriminator(read.view(2, 12), cu_seqlens=CU_SEQLENS).flatten()[TOKENS]
    expected = F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    torch.testing.assert_close(losses["rtd"], expected)
    assert correct["rtd"].item() == ((scores > 0).float() == labels).sum()


def test_a_token_drawn_right_counts_as_original():
    ids = torch.tensor([[MASK, 3, MASK, 4]])
    read, is_replaced = replace_tokens(ids, torch.tensor([0, 2]), torch.tensor([5, 6]), torch.tensor([5, 9]))
    assert read.tolist() == [[5, 3, 9, 4]]
    assert is_replaced.tolist() == [[False, False, True, False]]


def test_no_gradient_of_the_discriminator_reaches_the_generator(model, input_ids):
    losses, _ = run(model, input_ids)
    losses["rtd"].backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.discriminator.parameters())


def test_both_losses_train_everything(model, input_ids):
    losses, _ = run(model, input_ids)
    (losses["mlm"] + 50 * losses["rtd"]).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_tokens_are_drawn_from_the_softmax(model):
    torch.manual_seed(0)
    hidden = torch.randn(1, 4)
    logits = model.generator.head(hidden, model.generator.encoder.embeddings.token_weight)
    expected = logits[0].softmax(-1).detach()
    drawn = model.generator.sample(hidden.expand(40_000, 4), chunk_elements=61 * 999)
    shares = torch.bincount(drawn, minlength=61) / len(drawn)
    assert (shares - expected).abs().max() < 5 * (expected / len(drawn)).sqrt().max()


def test_draws_follow_the_seed_of_torch(model, input_ids):
    first, again, other = (run(model, input_ids, seed)[0]["rtd"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_batch_without_predictions_has_gradients(model, input_ids):
    nothing = torch.empty(0, dtype=torch.int64)
    losses, correct = model(input_ids, nothing, nothing, TOKENS, CU_SEQLENS)
    (losses["mlm"] + losses["rtd"]).backward()
    assert (losses["mlm"].item(), correct["mlm"].item()) == (0.0, 0)


def test_generator_with_other_embeddings_is_refused(small_config):
    with pytest.raises(ValueError, match=r"embedding_width 8 instead of 16.*embedding_size"):
        Electra(small_config(), small_config(embedding_size=8))


@pytest.mark.parametrize(
    ("generator_weight", "replaced"), [(1.0, 0), (0.0, 4)], ids=["trained-generator", "random-generator"]
)
def test_electra_learns_by_heart(small_config, input_ids, generator_weight, replaced):
    config = small_config(dropout=0.0, attention_dropout=0.0)
    model = Electra(config, replace(config, hidden_size=8, num_heads=1, embedding_size=16)).train()
    init_weights(model, seed=0)
    losses, correct = learn(model, lambda: run(model, input_ids), 250, mlm=generator_weight, rtd=50.0)
    # A generator that is always right leaves nothing to find; a random one replaces everything it is asked for.
    assert (4 - correct["mlm"].item(), losses["mlm"].item() < 0.5) == (replaced, replaced == 0)
    assert (correct["rtd"].item(), losses["rtd"].item() < 0.5) == (len(TOKENS), True)


@pytest.fixture
def batch(input_ids) -> PaddedBatch:
    mask = torch.arange(12) < torch.tensor([[12], [4]])
    return PaddedBatch(input_ids.where(mask, 0), mask, input_ids % 2)


def test_discriminator_of_a_pre_trained_pair_is_what_is_exported(model, batch):
    head = "replaced_token_detection"
    theirs, exported = opened_by_transformers(model, model.config, head, TokenIds(0, 1, 2))
    assert (exported.family, type(theirs).__name__) == ("ELECTRA", "ElectraForPreTraining")
    assert "generator is left out" in exported.notes[0]
    assert_same_outputs(model.discriminator, theirs, model.config, head, batch)


def test_generator_of_a_pre_trained_pair_is_exported_with_the_embeddings_that_it_shares(model, batch):
    config = model.generator.config
    alone = MaskedLanguageModel(config).eval()
    alone.load_state_dict(generator_part(model.state_dict()))
    theirs, exported = opened_by_transformers(alone, config, "masked_lm", TokenIds(0, 1, 2))
    assert (exported.family, type(theirs).__name__) == ("ELECTRA", "ElectraForMaskedLM")
    assert_same_outputs(alone, theirs, config, "masked_lm", batch)
    losses, _ = run(model, batch.input_ids)
    torch.testing.assert_close(
        losses["mlm"], alone(batch.input_ids, PREDICTED, TARGETS, CU_SEQLENS)[0]["mlm"]
    )
