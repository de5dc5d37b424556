"""Parameter-efficient fine-tuning: the papers' numbers of parameters, no change at first, only what is added is
trained; and `peft` computes the same from an export."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

from models.classifiers import SequenceClassifier
from models.elmo.representations import ElmoClassifier
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.hf.directory import save_hf_directory
from models.hf.heads import Head, carrier_of, ended_by, their_inputs
from models.language_models import CausalLanguageModel, ConditionalGenerator, SequenceToSequence
from models.peft.apply import apply_peft, load_peft, merge, peft_state, trained_parameters, trained_share
from models.peft.hf import save_peft_directory, to_peft
from models.peft.settings import (
    AdapterSettings,
    BitFitSettings,
    LoraSettings,
    MamSettings,
    PeftSettings,
    PrefixSettings,
)
from models.transformer import Transformer, TransformerLayer
from models.visibility import Varlen, Visible
from tests.models.families import SMALL, small
from tests.models.hf_oracle import TOKENS, assert_close_outputs, random_network
from tests.models.materials import padding, randomised, small_config, some_tokens, tiny_elmo
from tests.published_networks import PRESETS

DETERMINISTIC = {"dropout": 0.0, "attention_dropout": 0.0}
NETWORKS = {
    "encoder": small("BERT", **DETERMINISTIC),
    "decoder": small("GPT-2", **DETERMINISTIC),
    "grouped": small("LLaMA", **DETERMINISTIC),
    "encoder_decoder": small("BART", **DETERMINISTIC),
    "t5": small("T5", **DETERMINISTIC),
    "local": small("ModernBERT", local_window=4, global_every=2, biases=True, **DETERMINISTIC),
}
METHODS: dict[str, PeftSettings] = {
    "lora": LoraSettings(rank=3),
    "lora everywhere": LoraSettings(targets=("query", "key", "value", "output", "up", "down")),
    "houlsby": AdapterSettings(size=5),
    "pfeiffer": AdapterSettings("adapters", "pfeiffer", size=5),
    "parallel": AdapterSettings("adapters", "parallel", size=5, scale=4.0),
    "prefix": PrefixSettings(length=5),
    "prefix by a network": PrefixSettings(length=5, bottleneck=7),
    "bitfit": BitFitSettings(),
    "mam": MamSettings(prefix_length=5, size=6),
}
CASES = [
    (network, method)
    for network in NETWORKS
    for method in METHODS
    if method != "bitfit" or NETWORKS[network].biases
]
IDS, MASK = some_tokens(3, 11, 1), padding([11, 6, 1], 11)


def classifier(network: str) -> Any:
    return randomised(SequenceClassifier(NETWORKS[network], 3))


@torch.no_grad()
def moved(model: nn.Module) -> Any:
    """With every trained parameter off its initial value."""
    generator = torch.Generator().manual_seed(4)
    for parameter in trained_parameters(model).values():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def adapted(network: str, method: str) -> Any:
    return moved(apply_peft(classifier(network), METHODS[method], 1))


@pytest.mark.parametrize(("network", "method"), CASES)
def test_nothing_changes_at_first_but_what_a_prefix_adds(network, method):
    model = classifier(network)
    before, names = model(IDS, MASK), model.state_dict().keys()
    assert apply_peft(model, METHODS[method], 1) is model
    assert names <= model.state_dict().keys(), "tensors of the network keep their names"
    same = torch.allclose(model(IDS, MASK), before, atol=1e-6)
    assert same == (method not in ("prefix", "prefix by a network", "mam"))
    assert not torch.allclose(moved(model)(IDS, MASK), before, atol=1e-3)


@pytest.mark.parametrize(("network", "method"), CASES)
def test_training_moves_all_that_was_added_and_the_head_and_nothing_else(network, method):
    model = adapted(network, method).train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(trained_parameters(model).values(), lr=1.0)
    model(IDS, MASK).square().sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)
    optimizer.step()
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == trained_parameters(model).keys()
    assert any(name.startswith(("head.", "output.")) for name in changed)


@pytest.mark.parametrize("method", METHODS)
def test_saved_state_makes_another_start_the_same_network(method):
    model, other = adapted("encoder", method), apply_peft(classifier("encoder"), METHODS[method], 2)
    state = {name: tensor.clone() for name, tensor in peft_state(model).items()}
    load_peft(other, state)
    assert torch.equal(model(IDS, MASK), other(IDS, MASK))
    with pytest.raises(ValueError, match=r"head\.output\.bias"):
        load_peft(other, {name: tensor for name, tensor in state.items() if name != "head.output.bias"})


@pytest.mark.parametrize("method", METHODS)
def test_initial_weights_follow_from_seed_and_name_alone(method):
    models, before = [classifier("encoder") for _ in range(3)], torch.get_rng_state()
    first, again, other = (
        peft_state(apply_peft(model, METHODS[method], seed))
        for model, seed in zip(models, (1, 1, 2), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), before), "no global generator is read"
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    drawn = any(not torch.equal(tensor, other[name]) for name, tensor in first.items())
    assert drawn == (method != "bitfit")


@pytest.mark.parametrize("network", NETWORKS)
def test_merged_network_computes_the_same_with_the_tensors_it_had(network):
    model = classifier(network)
    names = model.state_dict().keys()
    gate = ("gate",) if model.config.gated else ()
    settings = LoraSettings(targets=("query", "key", "value", "output", "up", "down", *gate))
    expected = moved(apply_peft(model, settings, 1))(IDS, MASK)
    merge(model)
    assert model.state_dict().keys() == names
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model(IDS, MASK), expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"\bnone$"):
        merge(model)


@pytest.mark.parametrize(
    ("preset", "settings", "least", "most"),
    [
        # Hu et al. 2022, table 2: 0.3M of 125M.
        ("roberta-base", LoraSettings(rank=8), 0.0022, 0.0026),
        # Ben Zaken et al. 2022, table 1 and section 4: 0.08 % of BERT large, 0.09 % of BERT base.
        ("bert-large", BitFitSettings(), 0.00075, 0.00085),
        ("bert-base", BitFitSettings(), 0.00085, 0.00095),
        # Houlsby et al. 2019, table 1: 2.1 % of BERT large with size 64.
        ("bert-large", AdapterSettings(size=64), 0.0185, 0.0215),
        # He et al. 2022, table 2: 3.6 % of BART large for prefixes of 200; table 6: 6.7 % for l = 30 and r = 512.
        ("bart-large", PrefixSettings(length=200), 0.034, 0.038),
        ("bart-large", MamSettings(), 0.065, 0.069),
    ],
)
def test_share_of_trained_parameters_is_that_of_the_papers(preset, settings, least, most):
    config = PRESETS[preset]
    with torch.device("meta"):
        writes = config.network == "encoder_decoder"
        model = SequenceToSequence(config) if writes else SequenceClassifier(config, 2)
    apply_peft(model, settings, 1)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert least < trained_share(model) < most


def test_vocabulary_of_a_generator_is_not_trained():
    model = ConditionalGenerator(small_config(network="encoder_decoder", tie_embeddings=False))
    apply_peft(model, METHODS["lora"], 1)
    assert "network.head.weight" not in trained_parameters(model)


@torch.no_grad()
@pytest.mark.parametrize("network", ["decoder", "grouped"])
@pytest.mark.parametrize("method", ["prefix", "lora", "houlsby", "mam"])
def test_cached_generation_is_generation_without_a_cache(network, method):
    model = moved(apply_peft(randomised(CausalLanguageModel(NETWORKS[network])), METHODS[method], 1))
    config = GenerationConfig(max_new_tokens=6, min_new_tokens=6, eos_token_id=5, pad_token_id=3)
    generated = generate(model, some_tokens(2, 5, 1), config=config).sequences
    for place in range(5, 11):
        scores = model.logits(generated[:, :place])[:, -1]
        scores[:, 5] = -torch.inf
        assert generated[:, place].equal(scores.argmax(-1))


@torch.no_grad()
@pytest.mark.parametrize("network", ["encoder_decoder", "t5"])
def test_beams_of_an_encoder_decoder_share_the_prefix_of_their_memory(network):
    model = randomised(SequenceToSequence(NETWORKS[network]))
    moved(apply_peft(model, PrefixSettings(length=3), 1))
    settings = GenerationConfig(
        max_new_tokens=5, num_beams=3, decoder_start_token_id=3, eos_token_id=5, pad_token_id=3
    )
    source, mask = some_tokens(2, 9, 1), padding([9, 4], 9)
    both = generate(model, source, attention_mask=mask, config=settings).sequences
    alone = generate(model, source[1:, :4], config=settings).sequences
    assert both[1, : alone.shape[1]].equal(alone[0])


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_packed_pieces_are_read_as_texts_by_themselves(network, method):
    stack = getattr(adapted(network, method), network)
    ids = some_tokens(1, 12, 1)
    packed = stack(ids, cu_seqlens=torch.tensor([0, 5, 12], dtype=torch.int32))
    torch.testing.assert_close(packed[:, :5], stack(ids[:, :5]), atol=1e-5, rtol=0)
    torch.testing.assert_close(packed[:, 5:], stack(ids[:, 5:]), atol=1e-5, rtol=0)


def test_prefix_refuses_the_kernel_for_packed_pieces():
    model, boundaries = adapted("encoder", "prefix"), torch.tensor([0, 4], dtype=torch.int32)
    visible = Visible(varlen=Varlen(boundaries, boundaries, 4, 4, (-1, -1)))
    stack = next(module for module in model.modules() if isinstance(module, Transformer))
    layer = stack.layers[0]
    assert isinstance(layer, TransformerLayer)
    with pytest.raises(ValueError, match="attention_backend: sdpa"):
        layer.attention(torch.zeros(1, 4, 16), visible)


def test_prefix_of_a_decoder_takes_its_first_positions_and_ends_what_it_writes():
    model = randomised(CausalLanguageModel(NETWORKS["decoder"]))
    apply_peft(model, PrefixSettings(length=20), 1)
    model.logits(some_tokens(1, 4, 1))
    with pytest.raises(ValueError, match="knows 4 positions"):
        model.logits(some_tokens(1, 5, 1))
    prompt = some_tokens(1, 3, 1)
    settings: dict[str, Any] = {"eos_token_id": 5, "pad_token_id": 3, "min_length": 4}
    assert generate(model, prompt, config=GenerationConfig(**settings)).sequences.shape == (1, 4)
    with pytest.raises(ValueError, match="max_positions: 4"):
        generate(model, prompt, config=GenerationConfig(**settings, max_new_tokens=2))


def test_recomputed_layers_with_frozen_weights_have_the_same_gradients():
    model, gradients = adapted("encoder", "mam").train(), []
    for recompute in (False, True):
        model.encoder.transformer.gradient_checkpointing = recompute
        leaves = [*trained_parameters(model).values()]
        gradients.append(torch.autograd.grad(model(IDS, MASK).sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


HEADS_OF_PEFT: dict[str, tuple[Head, ...]] = {
    "encoder": ("sequence_classification", "token_classification", "question_answering", "masked_lm"),
    "decoder": ("sequence_classification", "token_classification", "causal_lm"),
    "encoder_decoder": ("sequence_classification", "question_answering", "seq2seq_lm"),
}
EXPORTED = [
    (family, head)
    for family in SMALL
    if family not in ("mBART", "RoBERTa-PreLayerNorm")
    for head in HEADS_OF_PEFT[small(family).network]
]


@torch.no_grad()
def ours_and_theirs(directory: Path, family: str, head: Head, settings: PeftSettings) -> tuple[Any, Any]:
    """A network as if it had been trained, and the one of `peft` that has its base from one directory and what was
    trained from another."""
    config, base = small(family), directory / "base"
    model = random_network(config, head, 1, 3)
    save_hf_directory(base, model.state_dict(), config, TOKENS, head=head, family=family)
    moved(apply_peft(model, settings, 1))
    exported = to_peft(model.eval(), head, family, str(base))
    save_peft_directory(directory / "trained", exported)
    theirs = getattr(transformers, carrier_of(config, head).auto_class).from_pretrained(base)
    return model, peft.PeftModel.from_pretrained(theirs, directory / "trained").eval()


@torch.no_grad()
@pytest.mark.parametrize("targets", [("query", "value"), ("query", "key", "value", "output", "up", "down")])
@pytest.mark.parametrize(("family", "head"), EXPORTED)
def test_lora_and_its_head_compute_the_same_on_the_network_they_started_from(tmp_path, family, head, targets):
    model, theirs = ours_and_theirs(tmp_path, family, head, LoraSettings(rank=3, alpha=5.0, targets=targets))
    config, mask = small(family), padding([14, 9, 2], 14)
    ids = ended_by(some_tokens(3, 14, 1), mask, TOKENS.eos or 0).where(mask, TOKENS.pad)
    others = some_tokens(3, 14, 2) if config.network == "encoder_decoder" else None
    found = carrier_of(config, head).outputs(model, ids, mask, others)
    decoder = {} if others is None else {"decoder_input_ids": others}
    assert_close_outputs(found, theirs(**their_inputs(config, ids, mask, None, head), **decoder), mask)


@torch.no_grad()
@pytest.mark.parametrize("bottleneck", [None, 7])
@pytest.mark.parametrize("family", ["GPT-2", "LLaMA"])
def test_prefix_computes_the_same_before_the_network_it_started_from(tmp_path, family, bottleneck):
    settings = PrefixSettings(length=5, bottleneck=bottleneck)
    model, theirs = ours_and_theirs(tmp_path, family, "causal_lm", settings)
    ids = some_tokens(2, 9, 1)
    expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(model.logits(ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("settings", "family", "message"),
    [
        (None, "RoBERTa", "none"),
        (AdapterSettings(), "RoBERTa", "adapters"),
        (AdapterSettings(), "XLNet", "'XLNet'"),
        (PrefixSettings(), "RoBERTa", "causal_lm"),
    ],
)
def test_methods_and_families_that_peft_has_not_are_refused(settings, family, message):
    model = random_network(small("RoBERTa"), "sequence_classification", 1, 2)
    if settings:
        apply_peft(model, settings, 1)
    with pytest.raises(ValueError, match=message):
        to_peft(model, "sequence_classification", family)


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        ("t5", BitFitSettings(), "this network has none"),
        ("encoder", LoraSettings(targets=("gate",)), "no projection gate"),
        ("decoder", PrefixSettings(length=24), "leaves no positions"),
    ],
)
def test_networks_that_a_method_does_not_fit_are_refused_unchanged(network, settings, message):
    model = classifier(network)
    with pytest.raises(ValueError, match=message):
        apply_peft(model, settings, 1)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_second_method_another_merging_and_elmo_are_refused():
    model = adapted("encoder", "houlsby")
    with pytest.raises(ValueError, match="has a method"):
        apply_peft(model, LoraSettings(), 1)
    with pytest.raises(ValueError, match="adapters"):
        merge(model)
    with pytest.raises(ValueError, match="ELMo"):
        apply_peft(ElmoClassifier(tiny_elmo(), 2), LoraSettings(), 1)
