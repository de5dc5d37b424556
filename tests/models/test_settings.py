"""Settings of networks, features, parameter-efficient methods and generation refuse what means nothing, by name and all
at once."""

import pytest

from models.config import ElmoConfig, FeatureSettings, TransformerConfig
from models.generation.config import GenerationConfig
from models.peft.settings import AdapterSettings, LoraSettings, MamSettings, PrefixSettings


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (TransformerConfig, {"num_layers": 0, "dropout": 2.0, "norm": "none"}, "num_layers.*dropout.*norm"),
        (TransformerConfig, {"vocab_size": 0, "num_heads": True}, "vocab_size.*num_heads"),
        (
            TransformerConfig,
            {"num_layers": 1.5, "intermediate_size": "3072"},
            "num_layers.*intermediate_size",
        ),
        (TransformerConfig, {"norm_eps": 0.0, "attention_dropout": -0.1}, "attention_dropout.*norm_eps"),
        (
            TransformerConfig,
            {"initializer_std": float("nan"), "tie_embeddings": None},
            "initializer_std.*tie",
        ),
        (TransformerConfig, {"hidden_size": 100}, r"hidden_size \(100\).* 96 "),
        (ElmoConfig, {"filters": ((1, 0),)}, "filters"),
        (ElmoConfig, {"filters": ((51, 4),)}, "width 51"),
        (ElmoConfig, {"cell_clip": 0.0, "dropout": 1.0}, "cell_clip .*; dropout"),
        (FeatureSettings, {"combine": "layer"}, "layer"),
        (FeatureSettings, {"layer": 1}, "combine"),
        (FeatureSettings, {"combine": "scalar_mix", "l2": -1.0}, "l2"),
        (LoraSettings, {"rank": 0}, "rank"),
        (LoraSettings, {"targets": ()}, "targets"),
        (LoraSettings, {"targets": ("q_proj",)}, "targets"),
        (AdapterSettings, {"size": 0, "dropout": 1.0}, "size .*; dropout"),
        (PrefixSettings, {"length": 0}, "length"),
        (MamSettings, {"prefix_length": 0}, "length"),
        (GenerationConfig, {"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences .*num_beams"),
        (GenerationConfig, {"do_sample": True, "num_beams": 2}, "do_sample .*num_beams"),
        (GenerationConfig, {"max_length": 4, "max_new_tokens": 4}, "max_length .*max_new_tokens"),
        (GenerationConfig, {"temperature": 0.0, "top_p": 1.2}, "temperature .*; top_p"),
        (GenerationConfig, {"top_k": 0, "num_beams": 0}, "num_beams .*; top_k"),
        (GenerationConfig, {"early_stopping": "always"}, "early_stopping"),
        (GenerationConfig, {"seed": 1.5, "eos_token_id": -1}, "seed .*; eos_token_id"),
        (GenerationConfig, {"suppress_tokens": (3,), "forced_bos_token_id": 3}, "suppress_tokens"),
        (GenerationConfig, {"length_penalty": float("nan")}, "length_penalty"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name_all_at_once(kind, fields, named):
    with pytest.raises(ValueError, match=named):
        kind(**fields)


@pytest.mark.parametrize(("network", "exact"), [("encoder", 8), ("decoder", 16), ("encoder_decoder", 16)])
def test_distances_that_leave_no_far_buckets_are_refused(network, exact):
    shape = {"network": network, "positions": "relative_bias", "relative_buckets": 32}
    assert TransformerConfig(**shape, relative_max_distance=exact + 1)
    with pytest.raises(ValueError, match=rf"relative_max_distance \({exact}\)"):
        TransformerConfig(**shape, relative_max_distance=exact)
