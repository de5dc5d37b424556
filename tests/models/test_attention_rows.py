"""Rows computed without their padding, and their texts side by side in the rows of attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import models.transformer
from models.config import TransformerConfig
from models.initialization import init_weights
from models.layout import FEWER_ROWS, Read, Unpadded, make_layout, side_by_side, unpadded
from models.stacks import Decoder, Encoder

SHAPE = {"vocab_size": 50, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64}
NETWORKS = {
    "learned positions": (Encoder, {"max_positions": 16}),
    "relative bias": (Encoder, {"positions": "relative_bias", "norm": "pre"}),
    "rotary, local": (Encoder, {"positions": "rotary", "local_window": 4, "global_every": 2}),
    "left to right": (Decoder, {"network": "decoder", "max_positions": 16}),
}


def padded(lengths: list[int], width: int, *, left: bool = False) -> torch.Tensor:
    """[texts, width] bool."""
    present = torch.arange(width) < torch.tensor(lengths)[:, None]
    return present.flip(1) if left else present


def rows_of(present: torch.Tensor):
    layout = make_layout(present.long(), None, present, max_positions=None)
    return side_by_side(Unpadded.of(present), layout)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.booleans())
def test_every_token_has_a_place_of_its_own_behind_the_one_before_it(lengths, left):
    present = padded(lengths, 12, left=left)
    places, layout = rows_of(present)
    if layout.present is not None:
        assert layout.batch == len(lengths)
        return
    assert layout.batch <= FEWER_ROWS * len(lengths)
    assert layout.length == max(lengths)
    pieces, positions = layout.piece_ids.flatten(), layout.position_ids.flatten()
    texts = [[text, place] for text, length in enumerate(lengths) for place in range(length)]
    found = torch.stack((pieces[places.index], positions[places.index]), 1)
    assert found.tolist() == texts
    assert places.index.unique().numel() == len(texts)
    assert (pieces == -1).sum() == pieces.numel() - len(texts)
    # Neighbours in a text are neighbours in a row.
    steps = places.index.diff()[torch.tensor(texts)[1:, 1] > 0]
    assert (steps == 1).all()
    assert (places.index // layout.length).unique().numel() == layout.batch


def test_texts_with_padding_inside_and_full_batches_keep_their_rows():
    gap = padded([3, 12, 1, 7], 12)
    gap[1, 4] = False
    assert rows_of(gap)[1].present is not None
    assert rows_of(padded([11, 12, 10, 12], 12))[1].present is not None


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("skipped", ["unpadded", "side_by_side"])
def test_states_and_gradients_are_those_of_texts_in_rows_of_their_own(name, left, skipped, monkeypatch):
    """With padding computed like tokens, and with texts in rows of their own."""
    make, settings = NETWORKS[name]
    network = make(TransformerConfig(**(SHAPE | settings), dropout=0.0, attention_dropout=0.0)).double()
    init_weights(network, seed=1)
    present = padded([3, 12, 1, 7, 2], 14, left=left)
    assert rows_of(present)[1].batch == 3
    ids = torch.randint(0, 50, (5, 14), generator=torch.Generator().manual_seed(0))
    read = present.flatten().nonzero().squeeze(1)[::2].contiguous()

    def computed() -> list[torch.Tensor]:
        network.zero_grad()
        states = (
            network(ids, attention_mask=present)[present],
            network(ids, attention_mask=present, read=read),
        )
        torch.cat(states).square().sum().backward()
        return [*states, *(each.grad.clone() for each in network.parameters() if each.grad is not None)]

    found = computed()
    plain = {"unpadded": lambda present: None, "side_by_side": lambda places, layout: (places, layout)}
    monkeypatch.setattr(models.transformer, skipped, plain[skipped])
    torch.testing.assert_close(found, computed(), rtol=1e-11, atol=1e-11)


def test_tokens_return_to_their_rows_with_zeros_at_padding():
    present = torch.tensor([[True, True, False], [False, True, False]])
    rows = torch.arange(12.0).view(2, 3, 2)
    places = Unpadded.of(present)
    assert places.tokens(rows).tolist() == [[[0.0, 1.0], [2.0, 3.0], [8.0, 9.0]]]
    torch.testing.assert_close(places.rows(places.tokens(rows)), rows * present[..., None])
    read = Read.of(torch.tensor([4, 1]), places, places)
    expected = [[[8.0, 9.0], [2.0, 3.0]]]
    assert read.of_tokens(places.tokens(rows)).tolist() == read.of_rows(rows).tolist() == expected


def test_rows_with_next_to_no_padding_stay_as_they_are():
    assert unpadded(torch.ones(2, 5, dtype=torch.bool)) is None
    assert unpadded(None) is None
