import dataclasses

import pytest

from models.config import TransformerConfig
from models.stacks import Encoder


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("num_layers", 1.5),
        ("hidden_size", -8),
        ("num_heads", True),
        ("intermediate_size", "3072"),
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
    with pytest.raises(ValueError, match=field):
        TransformerConfig(**{field: value})


def test_all_impossible_values_are_named_at_once():
    with pytest.raises(ValueError, match=r"num_layers.*dropout.*norm"):
        TransformerConfig(num_layers=0, dropout=2.0, norm="none")  # pyright: ignore[reportArgumentType]


def test_hidden_size_must_divide_into_heads():
    with pytest.raises(ValueError, match=r"hidden_size \(100\).* 96 "):
        TransformerConfig(hidden_size=100)


@pytest.mark.parametrize(("network", "exact"), [("encoder", 8), ("decoder", 16), ("encoder_decoder", 16)])
def test_distances_that_leave_no_far_buckets_are_refused(network, exact):
    shape = {"network": network, "positions": "relative_bias", "relative_buckets": 32}
    assert TransformerConfig(**shape, relative_max_distance=exact + 1)
    with pytest.raises(ValueError, match=rf"relative_max_distance \({exact}\)"):
        TransformerConfig(**shape, relative_max_distance=exact)


def test_network_without_a_vocabulary_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"vocab_size.*tokenizer"):
        Encoder(TransformerConfig())
    assert dataclasses.replace(TransformerConfig(), vocab_size=7).require_vocab_size() == 7


def test_a_configuration_that_leaves_out_sizes_is_of_roberta_base():
    own = dataclasses.asdict(TransformerConfig())
    sizes = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072}
    assert own | sizes | {"max_positions": 512, "norm": "post", "norm_eps": 1e-5} == own
