"""Causal language modelling: the next token of the piece, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.objectives import clm
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import PAD, many_texts_per_row, one_text_per_row, vocabulary_for

SETTINGS = clm.CausalLM()
VOCABULARY = vocabulary_for(clm, SETTINGS)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_every_token_predicts_the_next_of_its_piece_and_padding_is_never_predicted(
    seed: int, batch: int, length: int
):
    packed = many_texts_per_row(seed, batch, length)
    flat = packed.input_ids.reshape(-1)
    expected = {
        place: int(flat[place + 1])
        for start, stop in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True)
        for place in range(start, stop - 1)
        if flat[place] != PAD
    }
    made = clm.corrupt(packed, Noise.of("train", 1), SETTINGS, VOCABULARY)
    assert (made.inputs["input_ids"] == packed.input_ids).all()
    assert (made.inputs.get("cu_seqlens", packed.cu_seqlens) == packed.cu_seqlens).all()
    predicted = made.inputs["predicted_positions"].tolist()
    assert dict(zip(predicted, made.inputs["targets"].tolist(), strict=True)) == expected
    assert predicted == sorted(expected)
    assert made.counts == {"clm": len(expected)}


def test_rows_of_one_piece_need_no_boundaries_and_padding_inside_them_is_not_predicted():
    packed = one_text_per_row(2, 8)
    packed.input_ids[1, 6:] = PAD
    made = clm.corrupt(packed, Noise.of("train", 1), SETTINGS, VOCABULARY)
    assert "cu_seqlens" not in made.inputs
    assert made.inputs["predicted_positions"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
