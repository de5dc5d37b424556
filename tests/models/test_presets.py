"""Published networks have the published number of parameters; nothing is allocated to count them."""

import pytest
import torch
from torch import nn

from models.config import TransformerConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.stacks import Encoder
from models.weights import count_parameters
from tests.published_networks import PRESETS

MILLIONS = {
    "bert-tiny": 4.4,
    "bert-mini": 11.2,
    "bert-small": 28.8,
    "bert-medium": 41.4,
    "bert-base": 110,
    "bert-large": 335,
    "roberta-base": 125,
    "roberta-large": 355,
    "distilbert-base": 67,
    "spanbert-base": 108.3,
    "spanbert-large": 333.6,
    "electra-small": 13.5,
    "electra-base": 108.9,
    "electra-large": 334.1,
    "bart-base": 139,
    "bart-large": 406,
    "mbart-25": 610.9,
    "t5-small": 60.5,
    "t5-base": 222.9,
    "t5-large": 737.7,
    "t5-v1.1-small": 77,
    "t5-v1.1-base": 247.6,
    "t5-v1.1-large": 783.2,
    "gpt": 116.5,
    "gpt2": 124.4,
    "gpt2-medium": 354.8,
    "gpt3-350m": 356,
    "gpt3-760m": 760,
    "gpt3-1.3b": 1313,
    "llama-7b": 6738.4,
    "llama-1.1b": 1100.0,
    "llama3-8b": 8030.3,
    "modernbert-base": 149,
}
"""As published with the checkpoints, in millions."""


def build(name: str, config: TransformerConfig) -> nn.Module:
    if name.startswith("electra"):
        return Encoder(config)
    if config.network == "decoder":
        return CausalLanguageModel(config)
    if config.network == "encoder_decoder":
        return SequenceToSequence(config)
    return MaskedLanguageModel(config, pair="nsp" if name.startswith("bert") else None)


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_count_is_the_published_one(name: str):
    with torch.device("meta"):
        model = build(name, PRESETS[name])
    assert count_parameters(model) / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)
    assert all(parameter.is_meta for parameter in model.parameters())
