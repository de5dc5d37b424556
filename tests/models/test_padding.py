"""Rows computed without their padding."""

from __future__ import annotations

import pytest
import torch

import models.transformer
from models.classifiers import DecoderClassifier, SequenceClassifier
from models.config import TransformerConfig
from models.initialization import init_weights
from models.layout import Unpadded, unpadded

SHAPE = {"vocab_size": 50, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64}
SHAPES = {
    "learned": (SequenceClassifier, {"max_positions": 16}),
    "relative": (SequenceClassifier, {"positions": "relative_bias", "norm": "pre"}),
    "rotary, local": (SequenceClassifier, {"positions": "rotary", "local_window": 4, "global_every": 2}),
    "decoder": (DecoderClassifier, {"network": "decoder", "max_positions": 16}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_leaving_out_padding_changes_neither_scores_nor_gradients(shape, monkeypatch):
    make, settings = SHAPES[shape]
    model = make(TransformerConfig(**(SHAPE | settings), dropout=0.0, attention_dropout=0.0), 3)
    init_weights(model, seed=1)
    lengths = torch.tensor([3, 12, 1, 7])
    present = torch.arange(12) < lengths[:, None]
    ids = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    found = {}
    for leave_out in (True, False):
        if not leave_out:
            monkeypatch.setattr(models.transformer, "unpadded", lambda _: None)
        model.zero_grad()
        scores = model(ids, attention_mask=present)
        scores.square().sum().backward()
        gradients = {
            name: tensor.grad.clone() for name, tensor in model.named_parameters() if tensor.grad is not None
        }
        found[leave_out] = scores.detach(), gradients
    torch.testing.assert_close(found[True][0], found[False][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[True][1], found[False][1], rtol=1e-4, atol=1e-5)


def test_tokens_return_to_their_rows_with_zeros_at_padding():
    present = torch.tensor([[True, True, False], [False, True, False]])
    rows = torch.arange(12.0).view(2, 3, 2)
    places = Unpadded.of(present)
    assert places.tokens(rows).tolist() == [[[0.0, 1.0], [2.0, 3.0], [8.0, 9.0]]]
    torch.testing.assert_close(places.rows(places.tokens(rows)), rows * present[..., None])


def test_rows_with_next_to_no_padding_stay_as_they_are():
    assert unpadded(torch.ones(2, 5, dtype=torch.bool)) is None
    assert unpadded(None) is None
