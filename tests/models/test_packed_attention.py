from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.initialization import init_weights
from models.layout import same_piece_mask, segments_from_cu_seqlens
from models.stacks import Encoder
from models.transformer import choose_backend

LENGTH = 24


@st.composite
def packed_rows(draw) -> tuple[int, list[int]]:
    """A number of rows, and the boundaries of pieces that never cross a row."""
    batch = draw(st.integers(1, 3))
    boundaries = [0]
    for row in range(batch):
        cuts = draw(st.sets(st.integers(1, LENGTH - 1), max_size=5))
        boundaries += [row * LENGTH + cut for cut in sorted(cuts)] + [(row + 1) * LENGTH]
    return batch, boundaries


@pytest.fixture(scope="module", params=["post", "pre"])
def encoder(request, small_config, randomise) -> Encoder:
    model = Encoder(small_config(norm=request.param)).eval()
    init_weights(model, seed=1)
    randomise(model, 2)
    return model


@given(rows=packed_rows(), seed=st.integers(0, 2**31))
def test_packed_sample_equals_its_documents_run_alone(encoder, rows, seed):
    batch, boundaries = rows
    input_ids = torch.randint(61, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        packed = encoder(input_ids, cu_seqlens=torch.tensor(boundaries, dtype=torch.int32))
        for start, end in pairwise(boundaries):
            alone = encoder(input_ids.flatten()[start:end].unsqueeze(0))
            torch.testing.assert_close(packed.flatten(0, 1)[start:end], alone[0], atol=1e-5, rtol=1e-5)


def test_positions_restart_in_every_piece():
    piece_ids, positions = segments_from_cu_seqlens(torch.tensor([0, 2, 4, 8], dtype=torch.int32), 2, 4)
    assert piece_ids.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2]]
    assert positions.tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    assert positions.dtype == torch.int64
    assert same_piece_mask(piece_ids)[0, 0].int().tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2


def test_repeated_boundaries_are_empty_pieces():
    plain = segments_from_cu_seqlens(torch.tensor([0, 3, 6]), 1, 6)
    padded = segments_from_cu_seqlens(torch.tensor([0, 3, 3, 6, 6, 6]), 1, 6)
    assert torch.equal(same_piece_mask(plain[0]), same_piece_mask(padded[0]))
    assert torch.equal(plain[1], padded[1])


def test_full_attention_sees_across_documents(encoder):
    input_ids = torch.arange(LENGTH).unsqueeze(0)
    other = input_ids.clone()
    other[0, -1] = 60
    cut = torch.tensor([0, 10, LENGTH], dtype=torch.int32)
    with torch.no_grad():
        assert torch.equal(encoder(input_ids, cu_seqlens=cut)[0, :10], encoder(other, cu_seqlens=cut)[0, :10])
        assert not torch.allclose(encoder(input_ids)[0, :10], encoder(other)[0, :10], atol=1e-4)


def test_packed_row_may_be_longer_than_the_position_table(encoder):
    length = 2 * LENGTH
    boundaries = torch.tensor([0, LENGTH, length], dtype=torch.int32)
    assert encoder(torch.zeros(1, length, dtype=torch.int64), cu_seqlens=boundaries).shape == (1, length, 16)


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ([0, 10], "rise from 0 to batch \\* length = 48"),
        ([4, 24, 48], "rise from 0"),
        ([0, 30, 24, 48], "rise from 0"),
        ([0], "rise from 0"),
        ([0, 20, 40, 48], "crosses a row of 24 tokens"),
        ([0.0, 24.0, 48.0], "int32 or int64"),
    ],
)
def test_wrong_boundaries_are_refused(encoder, boundaries, message):
    with pytest.raises(ValueError, match=message):
        encoder(torch.zeros(2, LENGTH, dtype=torch.int64), cu_seqlens=torch.tensor(boundaries))


def test_sequence_longer_than_the_position_table_is_refused(encoder):
    too_long = torch.zeros(1, LENGTH + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="25 tokens, but the network knows 24 positions"):
        encoder(too_long)
    with pytest.raises(ValueError, match="piece has 25 tokens, but the network knows 24 positions"):
        encoder(too_long, cu_seqlens=torch.tensor([0, LENGTH + 1]))


def test_two_kinds_of_mask_are_refused(encoder):
    input_ids = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="not both"):
        encoder(input_ids, cu_seqlens=torch.tensor([0, 4]), attention_mask=torch.ones(1, 4))
    with pytest.raises(ValueError, match="shape of input_ids"):
        encoder(input_ids, attention_mask=torch.ones(1, 5))
    with pytest.raises(ValueError, match=r"\[batch, length\]"):
        encoder(input_ids[0])


@pytest.mark.parametrize(
    ("capability", "head_size", "backend"),
    [
        ((8, 0), 64, "varlen"),
        ((9, 0), 192, "varlen"),
        ((7, 5), 64, "sdpa"),
        ((8, 6), 256, "sdpa"),
        ((8, 0), 20, "sdpa"),
    ],
)
def test_flash_attention_is_taken_only_on_gpus_and_heads_that_it_has_kernels_for(
    capability, head_size, backend
):
    config = TransformerConfig(
        vocab_size=9, num_layers=1, hidden_size=2 * head_size, num_heads=2, attention_dropout=0.0
    )
    given = {"device": torch.device("cuda"), "dtype": torch.float16, "capability": capability}
    assert choose_backend(config, "auto", **given).backend == backend
    if backend == "sdpa":
        with pytest.raises(ValueError, match="attention_backend: auto"):
            choose_backend(config, "varlen", **given)
