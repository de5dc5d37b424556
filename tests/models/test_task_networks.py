"""Networks of fine-tuning: what the text is read with, and which token speaks for it."""

from functools import partial
from typing import Any

import pytest
import torch

from models.classifiers import ChoiceClassifier, SequenceClassifier, SpanClassifier, TokenClassifier
from models.features import FeatureClassifier, FeatureSettings, FeatureTagger, hidden_states
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, SequenceToSequence
from models.stacks import read_text, shifted_right
from models.weights import check_tensors
from tests.models.hf_oracle import export_of
from tests.models.materials import NETWORKS, padding, randomised, small_config, some_tokens


def built(build: Any, kind: str, *arguments: Any, **overrides: Any) -> Any:
    return randomised(build(small_config(**NETWORKS[kind], **overrides), *arguments))


@pytest.mark.parametrize("kind", NETWORKS)
def test_padding_changes_no_score(kind):
    long, ids = some_tokens(1, 11, 1), some_tokens(1, 7, 2)
    batch = torch.cat([long, torch.nn.functional.pad(ids, (0, 4), value=3)])
    mask = padding([11, 7], 11)
    for model in (built(SequenceClassifier, kind, 3), built(SpanClassifier, kind)):
        found = model(batch, mask)[1]
        expected = model(ids)[0]
        torch.testing.assert_close(found[: len(expected)], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", NETWORKS)
def test_choice_is_scored_as_a_text_by_itself(kind):
    choices = built(ChoiceClassifier, kind)
    alone = built(SequenceClassifier, kind, 1)
    assert choices.state_dict().keys() == alone.state_dict().keys()
    alone.load_state_dict(choices.state_dict())
    ids, mask = some_tokens(6, 9, 1), padding([9, 4, 7, 2, 9, 1], 9)
    found = choices(ids.view(2, 3, 9), mask.view(2, 3, 9))
    torch.testing.assert_close(found, alone(ids, mask).view(2, 3))
    with pytest.raises(ValueError, match=r"\[6, 9\]"):
        choices(ids, mask)


def test_decoder_reads_each_token_one_place_later_behind_the_last():
    ids = torch.tensor([[4, 5, 6, 2], [4, 7, 2, 1]])
    mask = padding([4, 3], 4)
    assert shifted_right(ids, mask).tolist() == [[2, 4, 5, 6], [2, 4, 7, 2]]


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


@pytest.mark.parametrize("kind", NETWORKS)
def test_hidden_states_are_those_of_transformers(kind):
    network = partial(SequenceClassifier, num_labels=2) if kind == "encoder" else PRETRAINED[kind]
    model = built(network, kind)
    theirs, ids = export_of(model, model.config), some_tokens(2, 6, 1)
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
    "sum_last_four": lambda states: states[2] + states[3] + states[4] + states[5],
    "concat_last_four": lambda states: torch.cat([states[2], states[3], states[4], states[5]], -1),
    "sum_all": lambda states: states[1:].sum(0),
    "scalar_mix": lambda states: states.mean(0),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("combine", COMBINED)
def test_features_combine_layers_as_their_name_says(kind, combine):
    config = small_config(**NETWORKS[kind], num_layers=5)
    model = FeatureTagger(config, 3, FeatureSettings(combine))
    init_weights(model, 1)
    ids = some_tokens(2, 6, 1)
    states = hidden_states(model.features, input_ids=ids)
    assert states.shape == (6, 2, 6, 16)
    torch.testing.assert_close(model.features(input_ids=ids), COMBINED[combine](states))
    assert model(input_ids=ids).shape == (2, 6, 3)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all(name.startswith(("scores.", "features.mix.")) for name in trained)


def test_named_layer_is_counted_from_the_embeddings():
    ids = some_tokens(2, 6, 1)
    model = FeatureTagger(small_config(), 3, FeatureSettings("layer", layer=1)).train()
    init_weights(model, 1)
    torch.testing.assert_close(model.features(input_ids=ids), hidden_states(model.features, input_ids=ids)[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"combine": "layer"}, "needed there"),
        ({"layer": 1}, "combine"),
        ({"combine": "scalar_mix", "l2": -1.0}, "l2 must be"),
        ({"combine": "layer", "layer": 3}, "0 to 2"),
        ({"combine": "sum_last_four"}, "four layers"),
    ],
)
def test_features_that_a_network_has_not_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FeatureTagger(small_config(), 3, FeatureSettings(**settings))


def test_features_of_a_text_are_the_mean_over_its_tokens():
    model = FeatureClassifier(small_config(), 3, FeatureSettings()).eval()
    init_weights(model, 1)
    ids = some_tokens(2, 6, 1)
    found = model(input_ids=ids, attention_mask=padding([6, 3], 6))
    torch.testing.assert_close(found[1], model(input_ids=ids[1:, :3])[0], atol=1e-5, rtol=0)


def test_tensors_that_do_not_fit_are_named():
    expected = SequenceClassifier(small_config(), 2).state_dict()
    state = dict(expected)
    cut = state.pop("encoder.transformer.layers.1.feed_forward.up.bias")
    state["encoder.transformer.layers.2.attention.qkv.bias"] = cut
    state["encoder.embeddings.positions.weight"] = torch.zeros(99, 16)
    with pytest.raises(ValueError, match="the checkpoint") as refused:
        check_tensors(expected, state, "the checkpoint")
    message = str(refused.value)
    assert "missing encoder.transformer.layers.1.feed_forward.up.bias" in message
    assert "unexpected encoder.transformer.layers.2.attention.qkv.bias" in message
    assert "encoder.embeddings.positions.weight is [99, 16], expected [24, 16]" in message
    with pytest.raises(ValueError, match=rf" {len(expected) - 8} more$"):
        check_tensors(expected, {}, "the checkpoint")
