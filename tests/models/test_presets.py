from __future__ import annotations

import pytest
import torch

from models.masked_language_model import MaskedLanguageModel
from models.presets import roberta_base, roberta_large
from models.weights import count_parameters


@pytest.mark.parametrize(
    ("preset", "published"), [(roberta_base, 125e6), (roberta_large, 355e6)], ids=["base", "large"]
)
def test_parameter_count_is_the_published_one(preset, published):
    with torch.device("meta"):
        model = MaskedLanguageModel(preset())
    assert count_parameters(model) == pytest.approx(published, rel=0.01)
    assert all(parameter.is_meta for parameter in model.parameters())
