from __future__ import annotations

import pytest
import torch

from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from models.sequence_classifier import SequenceClassifier
from models.weights import count_parameters, load_encoder_weights


@pytest.fixture
def pretrained(small_config, randomise) -> MaskedLanguageModel:
    model = MaskedLanguageModel(small_config())
    init_weights(model, seed=1)
    randomise(model, 2)
    return model


@pytest.mark.parametrize("num_labels", [1, 3])
def test_every_label_gets_a_score_from_the_first_position(small_config, num_labels):
    model = SequenceClassifier(small_config(), num_labels).eval()
    init_weights(model, seed=0)
    input_ids = torch.randint(61, (4, 9))
    logits = model(input_ids, torch.ones(4, 9, dtype=torch.bool))
    assert logits.shape == (4, num_labels)
    torch.testing.assert_close(logits, model.head(model.encoder(input_ids)[:, 0]))


def test_classifier_without_labels_is_refused(small_config):
    with pytest.raises(ValueError, match="num_labels must be at least 1"):
        SequenceClassifier(small_config(), 0)


def test_classifier_starts_from_the_pretrained_encoder(small_config, pretrained):
    model = SequenceClassifier(small_config(), 2)
    init_weights(model, seed=5)
    head = model.head.output.weight.clone()
    load_encoder_weights(model, pretrained.state_dict())
    input_ids = torch.randint(61, (2, 9))
    assert torch.equal(model.eval().encoder(input_ids), pretrained.eval().encoder(input_ids))
    assert torch.equal(model.head.output.weight, head)


def test_precision_of_the_network_survives_loading(small_config, pretrained):
    model = SequenceClassifier(small_config(), 2)
    state = {name: tensor.bfloat16() for name, tensor in pretrained.state_dict().items()}
    load_encoder_weights(model, state)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_encoder_that_does_not_fit_is_refused_by_tensor_name_and_nothing_is_copied(small_config, pretrained):
    model = SequenceClassifier(small_config(), 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = pretrained.state_dict()
    cut = state.pop("encoder.transformer.layers.1.feed_forward.up.bias")
    state["encoder.transformer.layers.2.attention.qkv.bias"] = cut
    state["encoder.embeddings.positions.weight"] = torch.zeros(99, 16)
    with pytest.raises(ValueError, match="does not fit") as refused:
        load_encoder_weights(model, state)
    message = str(refused.value)
    assert "missing encoder.transformer.layers.1.feed_forward.up.bias" in message
    assert "unexpected encoder.transformer.layers.2.attention.qkv.bias" in message
    assert "encoder.embeddings.positions.weight is [99, 16], expected [24, 16]" in message
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_state_without_an_encoder_is_refused_with_a_short_message(small_config):
    with pytest.raises(ValueError, match=r"missing .* and 20 more$"):
        load_encoder_weights(SequenceClassifier(small_config(), 2), {"head.bias": torch.zeros(1)})


def test_shared_parameters_count_once(small_config):
    tied, untied = (MaskedLanguageModel(small_config(tie_embeddings=tie)) for tie in (True, False))
    assert count_parameters(untied) - count_parameters(tied) == 61 * 16
