"""What was trained here, loaded by `peft` onto the exported network of `transformers`, computes the same."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

from models.hf.directory import save_hf_directory
from models.hf.heads import Head, carrier_of, ended_by, their_inputs
from models.peft.apply import apply_peft, trained_parameters
from models.peft.hf import save_peft_directory, to_peft
from models.peft.settings import AdapterSettings, LoraSettings, PeftSettings, PrefixSettings
from tests.models.hf_configs import SMALL, small
from tests.models.hf_oracle import TOKENS, assert_close_outputs, random_network
from tests.models.materials import padding, some_tokens

HEADS: dict[str, tuple[Head, ...]] = {
    "encoder": ("sequence_classification", "token_classification", "question_answering", "masked_lm"),
    "decoder": ("sequence_classification", "token_classification", "causal_lm"),
    "encoder_decoder": ("sequence_classification", "question_answering", "seq2seq_lm"),
}
CASES = [(family, head) for family in SMALL if family != "mBART" for head in HEADS[small(family).network]]


@torch.no_grad()
def ours_and_theirs(
    directory: Path, family: str, head: Head, settings: PeftSettings
) -> tuple[nn.Module, Any]:
    """A network as if it had been trained, and the one of `peft` that has its base from one directory and what was
    trained from another."""
    config, base_directory = small(family), directory / "base"
    model = random_network(config, head, 1, 3)
    save_hf_directory(base_directory, model.state_dict(), config, TOKENS, head=head, family=family)
    apply_peft(model, settings, 1)
    generator = torch.Generator().manual_seed(4)
    for parameter in trained_parameters(model).values():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    exported = to_peft(model.eval(), head, family, str(base_directory), TOKENS.pad)
    save_peft_directory(directory / "trained", exported)
    auto_class = getattr(transformers, carrier_of(config, head).auto_class)
    theirs = auto_class.from_pretrained(base_directory)
    return model, peft.PeftModel.from_pretrained(theirs, directory / "trained").eval()


@torch.no_grad()
@pytest.mark.parametrize("targets", [("query", "value"), ("query", "key", "value", "output", "up", "down")])
@pytest.mark.parametrize(("family", "head"), CASES)
def test_lora_and_its_head_compute_the_same_on_the_network_they_started_from(tmp_path, family, head, targets):
    model, theirs = ours_and_theirs(tmp_path, family, head, LoraSettings(rank=3, alpha=5.0, targets=targets))
    config, mask = small(family), padding([14, 9, 2], 14)
    ids = ended_by(some_tokens(3, 14, 1), mask, TOKENS.eos or 0).where(mask, TOKENS.pad)
    others = some_tokens(3, 14, 2) if config.network == "encoder_decoder" else None
    found = carrier_of(config, head).outputs(model, ids, mask, others)
    given = (
        their_inputs(config, ids, mask, None, head)
        if others is None
        else {"input_ids": ids, "attention_mask": mask.long(), "decoder_input_ids": others}
    )
    assert_close_outputs(found, theirs(**given), mask)


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
