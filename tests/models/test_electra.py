from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers

from models.config import TransformerConfig
from models.electra import Discriminator, Electra, replace_tokens
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from models.weights import count_parameters
from tests.published_networks import PRESETS

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


def test_generator_is_a_masked_language_model(small_config, randomise, input_ids):
    model = make(small_config(), randomise)
    plain = MaskedLanguageModel(model.generator.config).eval()
    shared = {
        name.removeprefix("discriminator."): tensor
        for name, tensor in model.state_dict().items()
        if name.startswith("discriminator.encoder.embeddings.")
    }
    own = {
        name.removeprefix("generator."): tensor
        for name, tensor in model.state_dict().items()
        if name.startswith("generator.")
    }
    plain.load_state_dict({**shared, **own}, strict=True)
    losses, correct = run(model, input_ids)
    expected, right = plain(input_ids, PREDICTED, TARGETS, CU_SEQLENS)
    torch.testing.assert_close(losses["mlm"], expected["mlm"])
    assert torch.equal(correct["mlm"], right["mlm"])


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


@pytest.mark.parametrize(
    ("name", "millions"), [("electra-small", 14), ("electra-base", 110), ("electra-large", 335)]
)
def test_discriminators_have_the_published_sizes(name, millions):
    config = PRESETS[name]
    with torch.device("meta"):
        ours = Discriminator(config)
        theirs = transformers.ElectraForPreTraining(
            transformers.ElectraConfig(
                vocab_size=config.require_vocab_size(),
                embedding_size=config.embedding_width,
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                intermediate_size=config.intermediate_size,
            )
        )
    assert count_parameters(ours) == count_parameters(theirs)
    # Clark et al. 2020, tables 1 and 2, round to millions and to the nearest five.
    assert count_parameters(ours) / 1e6 == pytest.approx(millions, rel=0.035)


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(250):
        optimizer.zero_grad()
        losses, _ = run(model, input_ids)
        (generator_weight * losses["mlm"] + 50 * losses["rtd"]).backward()
        optimizer.step()
    losses, correct = run(model, input_ids)
    # A generator that is always right leaves nothing to find; a random one replaces everything it is asked for.
    assert (4 - correct["mlm"].item(), losses["mlm"].item() < 0.5) == (replaced, replaced == 0)
    assert (correct["rtd"].item(), losses["rtd"].item() < 0.5) == (len(TOKENS), True)
