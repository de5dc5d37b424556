from __future__ import annotations

import pytest
import torch

from models.classifiers import SequenceClassifier
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from models.weights import check_tensors, count_parameters


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


def test_tensors_that_do_not_fit_are_named(small_config):
    expected = SequenceClassifier(small_config(), 2).state_dict()
    state = dict(expected)
    cut = state.pop("encoder.transformer.layers.1.feed_forward.up.bias")
    state["encoder.transformer.layers.2.attention.qkv.bias"] = cut
    state["encoder.embeddings.positions.weight"] = torch.zeros(99, 16)
    with pytest.raises(ValueError, match="does not fit") as refused:
        check_tensors(expected, state, "the checkpoint")
    message = str(refused.value)
    assert "missing encoder.transformer.layers.1.feed_forward.up.bias" in message
    assert "unexpected encoder.transformer.layers.2.attention.qkv.bias" in message
    assert "encoder.embeddings.positions.weight is [99, 16], expected [24, 16]" in message
    with pytest.raises(ValueError, match=rf"missing .* and {len(expected) - 8} more$"):
        check_tensors(expected, {}, "the checkpoint")


def test_shared_parameters_count_once(small_config):
    tied, untied = (MaskedLanguageModel(small_config(tie_embeddings=tie)) for tie in (True, False))
    assert count_parameters(untied) - count_parameters(tied) == 61 * 16
