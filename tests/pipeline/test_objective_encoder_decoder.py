"""Pairs of texts side by side in the rows of an encoder-decoder: nothing lost, nothing mixed up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.config import TransformerConfig
from pipeline.objectives import bart_denoising, t5_span_corruption, ul2_mixture_of_denoisers
from pipeline.objectives.encoder_decoder import WIDENING, TextPairs, assemble_rows
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import (
    FIRST_TEXT,
    PAD,
    many_texts_per_row,
    pairs,
    vocabulary_for,
)

START = 3


def text_pairs(lengths: list[list[tuple[int, int]]]) -> TextPairs:
    """Pairs with these source and target lengths, row by row; no token stands twice."""
    flat = [pair for row in lengths for pair in row]
    sources, targets = sum(one for one, _ in flat), sum(two for _, two in flat)
    return TextPairs(
        sources=np.arange(FIRST_TEXT, FIRST_TEXT + sources),
        targets=np.arange(FIRST_TEXT + sources, FIRST_TEXT + sources + targets),
        source_lengths=np.asarray([one for one, _ in flat], dtype=np.int64),
        target_lengths=np.asarray([two for _, two in flat], dtype=np.int64),
        rows=np.repeat(np.arange(len(lengths)), [len(row) for row in lengths]),
        origins=np.empty(0, dtype=np.int64),
    )


ROWS = st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4), min_size=1, max_size=4)


@given(ROWS, st.integers(4, 30), st.integers(4, 30))
def test_piece_i_of_the_decoder_belongs_to_piece_i_of_the_encoder(
    lengths: list[list[tuple[int, int]]], source_width: int, target_width: int
):
    given_pairs = text_pairs(lengths)
    batch = assemble_rows(given_pairs, len(lengths), (source_width, target_width), PAD, START)
    found = pairs(batch)
    sources = np.split(given_pairs.sources, np.cumsum(given_pairs.source_lengths)[:-1])
    targets = np.split(given_pairs.targets, np.cumsum(given_pairs.target_lengths)[:-1])
    assert [pair.source for pair in found] == [source.tolist() for source in sources if len(source)]
    assert [pair.targets for pair in found] == [target.tolist() for target in targets if len(target)]
    assert [pair.row for pair in found] == given_pairs.rows.tolist()
    assert all(pair.decoder_inputs == [START, *pair.targets[:-1]] for pair in found)
    for name, width in (("input_ids", source_width), ("decoder_input_ids", target_width)):
        assert batch.inputs[name].shape[0] == len(lengths)
        assert (batch.inputs[name].shape[1] - width) % WIDENING == 0


def test_rows_that_fit_exactly_need_no_boundaries():
    batch = assemble_rows(text_pairs([[(5, 3)], [(5, 3)]]), 2, (5, 3), PAD, START)
    assert "cu_seqlens" not in batch.inputs
    assert "decoder_cu_seqlens" not in batch.inputs


def test_padding_beside_a_full_row_of_the_decoder_is_an_empty_piece_there():
    batch = assemble_rows(text_pairs([[(4, 3)], [(5, 3)]]), 2, (5, 3), PAD, START)
    assert batch.inputs["cu_seqlens"].tolist() == [0, 4, 5, 10]
    assert batch.inputs["decoder_cu_seqlens"].tolist() == [0, 3, 3, 6]


def test_padding_beside_a_full_row_of_the_encoder_stays_with_the_last_piece():
    batch = assemble_rows(text_pairs([[(2, 1), (3, 1)]]), 1, (5, 3), PAD, START)
    assert batch.inputs["cu_seqlens"].tolist() == [0, 2, 5]
    assert batch.inputs["decoder_cu_seqlens"].tolist() == [0, 1, 3]
    assert batch.inputs["predicted_positions"].tolist() == [0, 1]


PLAIN = [
    (bart_denoising, bart_denoising.BartDenoising()),
    (t5_span_corruption, t5_span_corruption.SpanCorruption()),
    (ul2_mixture_of_denoisers, ul2_mixture_of_denoisers.MixtureOfDenoisers()),
]
VOCABULARIES = {module: vocabulary_for(module, chosen) for module, chosen in PLAIN}


@pytest.mark.parametrize(("objective", "chosen"), PLAIN)
def test_the_loss_of_a_packed_batch_is_that_of_its_pieces_alone(objective, chosen):
    vocabulary = VOCABULARIES[objective]
    packed = many_texts_per_row(3, 3, 50, longest=20)
    batch = objective.corrupt(packed, Noise.of("train", 1), chosen, vocabulary)
    torch.manual_seed(0)
    config = TransformerConfig(
        network="encoder_decoder",
        vocab_size=vocabulary.size,
        num_layers=1,
        hidden_size=16,
        num_heads=2,
        intermediate_size=32,
        max_positions=128,
        initializer_std=0.3,
    )
    model = objective.build_model(chosen, config).eval()
    inputs = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
    together = model(**inputs)[0]["denoise"]
    alone = sum(
        model(
            input_ids=torch.tensor([pair.source]),
            decoder_input_ids=torch.tensor([pair.decoder_inputs]),
            predicted_positions=torch.arange(len(pair.targets)),
            targets=torch.tensor(pair.targets),
        )[0]["denoise"]
        for pair in pairs(batch)
    )
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-4)
