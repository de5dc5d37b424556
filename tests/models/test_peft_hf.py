"""What was trained here, loaded by `peft` onto the exported network of `transformers`, computes the same."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from models.hf.directory import save_hf_directory
from models.hf.heads import Head, carrier_of, ended_by, their_inputs
from models.initialization import init_weights
from models.peft.apply import apply_peft, trained_parameters
from models.peft.hf import save_peft_directory, to_peft
from models.peft.prefix import Prefix
from models.peft.settings import AdapterSettings, LoraSettings, PeftSettings, PrefixSettings
from tests.models.hf_configs import SMALL, small
from tests.models.hf_oracle import TOKENS, padding, random_network, some_tokens

HEADS: dict[str, tuple[Head, ...]] = {
    "encoder": ("sequence_classification", "token_classification", "question_answering", "masked_lm"),
    "decoder": ("sequence_classification", "token_classification", "causal_lm"),
    "encoder_decoder": ("sequence_classification", "question_answering", "seq2seq_lm"),
}
CASES = [(family, head) for family in SMALL if family != "mBART" for head in HEADS[small(family).network]]


@torch.no_grad()
def trained(model: nn.Module, settings: PeftSettings) -> nn.Module:
    """As if it had been trained: what is trained is moved off its initial value."""
    apply_peft(model, settings, 1)
    generator = torch.Generator().manual_seed(4)
    for parameter in trained_parameters(model).values():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


@torch.no_grad()
def trained_prefixes(model: nn.Module, settings: PrefixSettings) -> torch.Tensor:
    """Give a network prefixes, but leave its head as it is. Returns them as `peft` has them: [length, width]."""
    apply_peft(model, settings, 1)
    generator = torch.Generator().manual_seed(4)
    prefixes = [module for module in model.eval().modules() if isinstance(module, Prefix)]
    for prefix in prefixes:
        assert prefix.pair is not None
        prefix.pair.add_(torch.randn(prefix.shape, generator=generator), alpha=0.5)
    return torch.stack([prefix.keys_and_values().permute(2, 0, 1, 3) for prefix in prefixes], 1).flatten(1)


def on_export(directory, base: nn.Module, model: nn.Module, config, head: Head, family: str) -> Any:
    """The network of `peft` that has the base from one directory and what was trained from another."""
    import transformers

    save_hf_directory(directory / "base", base.state_dict(), config, TOKENS, head=head, family=family)
    save_peft_directory(
        directory / "trained", to_peft(model, head, family, str(directory / "base"), TOKENS.pad)
    )
    auto_class = getattr(transformers, carrier_of(config, head).auto_class)
    theirs = auto_class.from_pretrained(directory / "base")
    return peft.PeftModel.from_pretrained(theirs, directory / "trained").eval()


@torch.no_grad()
@pytest.mark.parametrize("targets", [("query", "value"), ("query", "key", "value", "output", "up", "down")])
@pytest.mark.parametrize(("family", "head"), CASES)
def test_lora_and_its_head_compute_the_same_on_the_network_they_started_from(tmp_path, family, head, targets):
    config = small(family)
    base = random_network(config, head, 1, 3)
    model = random_network(config, head, 1, 3)
    init_weights(model, 1)
    model.load_state_dict(base.state_dict())
    model = trained(model, LoraSettings(rank=3, alpha=5.0, targets=targets))
    theirs = on_export(tmp_path, base, model, config, head, family)
    mask = padding([14, 9, 2], 14)
    ids = ended_by(some_tokens(3, 14, 1), mask, TOKENS.eos or 0).where(mask, TOKENS.pad)
    if config.network == "encoder_decoder":
        others = some_tokens(3, 14, 2)
        found = carrier_of(config, head).outputs(model, ids, mask, others)
        expected = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=others)
    else:
        found = carrier_of(config, head).outputs(model, ids, mask, None)
        expected = theirs(**their_inputs(config, ids, mask, None, head))
    for name, scores in found.items():
        other = expected[name]
        if scores.shape[:2] == mask.shape:
            scores, other = scores[mask], other[mask]
        torch.testing.assert_close(scores, other, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("bottleneck", [None, 7])
@pytest.mark.parametrize("family", ["GPT-2", "LLaMA"])
def test_prefix_computes_the_same_before_the_network_it_started_from(tmp_path, family, bottleneck):
    config = small(family)
    base = random_network(config, "causal_lm", 1)
    model: Any = random_network(config, "causal_lm", 1)
    model.load_state_dict(base.state_dict())
    trained(model, PrefixSettings(length=5, bottleneck=bottleneck))
    theirs = on_export(tmp_path, base, model, config, "causal_lm", family)
    ids = some_tokens(2, 9, 1)
    expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(model.logits(ids), expected, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("family", ["BERT", "RoBERTa", "ELECTRA"])
def test_prefix_of_an_encoder_differs_there_by_the_positions_of_the_text_alone(tmp_path, family):
    """Why it is refused: the table of positions, moved by the length of the prefix, makes the networks equal."""
    head, length = "sequence_classification", 5
    config = small(family)
    model: Any = random_network(config, head, 1, 3)
    save_hf_directory(tmp_path, model.state_dict(), config, TOKENS, head=head, family=family)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    pairs = trained_prefixes(model, PrefixSettings(length=length))
    settings = peft.PrefixTuningConfig(
        task_type="SEQ_CLS",
        num_virtual_tokens=length,
        num_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        token_dim=config.hidden_size,
        num_transformer_submodules=1,
    )
    theirs = peft.get_peft_model(theirs, settings).eval()
    theirs.prompt_encoder["default"].embedding.weight.copy_(pairs)
    ids, mask = some_tokens(2, 9, 1), torch.ones(2, 9, dtype=torch.bool)
    expected = theirs(input_ids=ids, attention_mask=mask.long()).logits
    (here,) = carrier_of(config, head).outputs(model, ids, mask, None).values()
    assert (here - expected).abs().max() > 1e-3
    positions = model.encoder.embeddings.positions.weight
    positions.copy_(positions.roll(-length, 0))
    (moved,) = carrier_of(config, head).outputs(model, ids, mask, None).values()
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


def test_methods_and_families_that_peft_has_not_are_refused():
    config = small("RoBERTa")
    model = random_network(config, "sequence_classification", 1, 2)
    with pytest.raises(ValueError, match="peft has no none"):
        to_peft(model, "sequence_classification", "RoBERTa")
    apply_peft(model, AdapterSettings(), 1)
    with pytest.raises(ValueError, match="peft has no adapters as it is here"):
        to_peft(model, "sequence_classification", "RoBERTa")
    with pytest.raises(ValueError, match="no family 'XLNet'"):
        to_peft(model, "sequence_classification", "XLNet")
    other = random_network(config, "sequence_classification", 1, 2)
    apply_peft(other, PrefixSettings(), 1)
    with pytest.raises(ValueError, match="for causal_lm only, not for sequence_classification"):
        to_peft(other, "sequence_classification", "RoBERTa")
