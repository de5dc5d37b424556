"""Networks of fine-tuning: which token speaks for a text; settings that mean nothing are refused, all at once."""

from functools import partial
from typing import Any

import pytest
import torch

from models.classifiers import ChoiceClassifier, SequenceClassifier, TokenClassifier
from models.config import ElmoConfig, TransformerConfig
from models.features import FeatureClassifier, FeatureSettings, FeatureTagger, hidden_states
from models.generation.config import GenerationConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, SequenceToSequence
from models.peft.settings import AdapterSettings, LoraSettings, MamSettings, PrefixSettings
from models.stacks import read_text, shifted_right
from tests.models.hf_oracle import opened_by_transformers
from tests.models.materials import NETWORKS, padding, randomised, small_config, some_tokens


def built(build: Any, kind: str, *arguments: Any, **overrides: Any) -> Any:
    return randomised(build(small_config(**NETWORKS[kind], **overrides), *arguments))


def test_networks_refuse_what_they_have_not():
    ids = some_tokens(1, 4, 1)
    with pytest.raises(ValueError, match="segment_ids"):
        read_text(built(TokenClassifier, "decoder", 2), ids, segment_ids=ids)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        read_text(built(TokenClassifier, "encoder", 2), ids, decoder_input_ids=ids)
    with pytest.raises(ValueError, match="encoder_decoder"):
        TokenClassifier(small_config(network="encoder_decoder"), 2)
    for classifier in (TokenClassifier, SequenceClassifier):
        with pytest.raises(ValueError, match="at least 1"):
            classifier(small_config(), 0)
    with pytest.raises(ValueError, match=r"\[6, 9\]"):
        built(ChoiceClassifier, "encoder")(some_tokens(6, 9, 1))


@pytest.mark.parametrize("kind", NETWORKS)
def test_hidden_states_are_those_of_transformers(kind):
    network = partial(SequenceClassifier, num_labels=2) if kind == "encoder" else PRETRAINED[kind]
    model = built(network, kind)
    theirs, ids = opened_by_transformers(model, model.config)[0], some_tokens(2, 6, 1)
    arguments = {"decoder_input_ids": shifted_right(ids)} if kind == "encoder_decoder" else {}
    with torch.no_grad():
        base = getattr(theirs, theirs.base_model_prefix)
        expected = base(input_ids=ids, output_hidden_states=True, **arguments)
        found = hidden_states(model, input_ids=ids)
        padded = hidden_states(
            model, input_ids=torch.nn.functional.pad(ids, (0, 5)), attention_mask=padding([6, 6], 11)
        )
    states = expected["decoder_hidden_states" if kind == "encoder_decoder" else "hidden_states"]
    torch.testing.assert_close(found, torch.stack(states), atol=1e-5, rtol=0)
    torch.testing.assert_close(padded[:, :, :6], found, atol=1e-5, rtol=0)


PRETRAINED = {"decoder": CausalLanguageModel, "encoder_decoder": SequenceToSequence}
COMBINED = {
    "last": lambda states: states[-1],
    "layer": lambda states: states[1],  # counted from the embeddings
    "sum_last_four": lambda states: states[2] + states[3] + states[4] + states[5],
    "concat_last_four": lambda states: torch.cat([states[2], states[3], states[4], states[5]], -1),
    "sum_all": lambda states: states[1:].sum(0),
    "scalar_mix": lambda states: states.mean(0),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("combine", COMBINED)
def test_features_combine_layers_as_their_name_says(kind, combine):
    config = small_config(**NETWORKS[kind], num_layers=5)
    model = FeatureTagger(
        config, 3, FeatureSettings(combine, layer=1 if combine == "layer" else None)
    ).train()
    init_weights(model, 1)
    ids = some_tokens(2, 6, 1)
    states = hidden_states(model.features, input_ids=ids)
    assert states.shape == (6, 2, 6, 16)
    torch.testing.assert_close(model.features(input_ids=ids), COMBINED[combine](states))
    assert model(input_ids=ids).shape == (2, 6, 3)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all(name.startswith(("scores.", "features.mix.")) for name in trained)


@pytest.mark.parametrize(
    ("settings", "message"),
    [(FeatureSettings("layer", layer=3), "0 to 2"), (FeatureSettings("sum_last_four"), "sum_last_four")],
)
def test_layers_that_a_network_has_not_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FeatureTagger(small_config(), 3, settings)


def test_features_of_a_text_are_the_mean_over_its_tokens():
    model = FeatureClassifier(small_config(), 3, FeatureSettings()).eval()
    init_weights(model, 1)
    ids = some_tokens(2, 6, 1)
    found = model(input_ids=ids, attention_mask=padding([6, 3], 6))
    torch.testing.assert_close(found[1], model(input_ids=ids[1:, :3])[0], atol=1e-5, rtol=0)


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
