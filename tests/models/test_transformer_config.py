from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from models.config import TransformerConfig
from models.stacks import Encoder


class Run(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    network: TransformerConfig


def test_defaults_are_roberta_base():
    config = TransformerConfig()
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.intermediate_size)
    assert sizes == (12, 768, 12, 3072)
    assert (config.max_positions, config.norm, config.norm_eps) == (512, "post", 1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("num_layers", 0),
        ("num_layers", 1.5),
        ("hidden_size", -8),
        ("num_heads", True),
        ("intermediate_size", "3072"),
        ("max_positions", 0),
        ("dropout", 1.0),
        ("attention_dropout", -0.1),
        ("norm", "sandwich"),
        ("norm_eps", 0.0),
        ("activation", "swish"),
        ("initializer_std", float("nan")),
        ("tie_embeddings", None),
    ],
)
def test_impossible_value_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} must be"):
        TransformerConfig(**{field: value})


def test_all_impossible_values_are_named_at_once():
    with pytest.raises(ValueError, match=r"num_layers.*dropout.*norm must be"):
        TransformerConfig(num_layers=0, dropout=2.0, norm="none")  # pyright: ignore[reportArgumentType]


def test_hidden_size_must_divide_into_heads():
    with pytest.raises(
        ValueError, match=r"hidden_size \(100\) must be a multiple of num_heads \(12\); 96 would"
    ):
        TransformerConfig(hidden_size=100)


def test_config_is_validated_inside_a_pydantic_model():
    run = Run.model_validate({"network": {"num_layers": 2, "dropout": 0}})
    assert run.network == TransformerConfig(num_layers=2, dropout=0.0)
    for network in ({"num_layer": 2}, {"num_layers": "two"}, {"norm": "middle"}, {"hidden_size": 100}):
        with pytest.raises(pydantic.ValidationError):
            Run.model_validate({"network": network})


def test_config_survives_a_round_trip_through_json():
    run = Run(network=TransformerConfig(vocab_size=10, norm="pre"))
    assert Run.model_validate_json(run.model_dump_json()) == run


def test_network_without_a_vocabulary_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"vocab_size is not set.*tokenizer"):
        Encoder(TransformerConfig())
    assert dataclasses.replace(TransformerConfig(), vocab_size=7).require_vocab_size() == 7


def test_importing_the_config_does_not_import_torch():
    code = "import sys, models.config; sys.exit('torch' in sys.modules)"
    root = Path(inspect.getfile(TransformerConfig)).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
