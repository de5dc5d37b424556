"""Masked language modelling: counts, shares, and what must never be touched."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.batches.noise import Noise
from pipeline.batches.packing import Packed
from pipeline.objectives.mlm import MaskedLM, Vocabulary, corrupt

VOCABULARY = Vocabulary(size=1000, mask=4, special=(0, 1, 2, 3, 4))


def make_packed(batch: int, length: int, *, seed: int = 0, epoch: int = 0) -> Packed:
    draws = Noise.of("test", seed).at(np.arange(batch * length, dtype=np.uint64)).integers(995) + 5
    ids = draws.reshape(batch, length).astype(np.uint32)
    ids[:, 0], ids[:, -1] = 0, 2
    return Packed(
        input_ids=ids,
        cu_seqlens=np.arange(0, batch * length + 1, length, dtype=np.int32),
        sample_ids=np.arange(batch, dtype=np.uint64),
        epochs=np.full(batch, epoch, dtype=np.uint64),
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(4, 80), st.floats(0.01, 0.9), st.integers(0, 9))
def test_original_text_is_recoverable_and_specials_are_never_predicted(
    batch: int, length: int, rate: float, seed: int
):
    packed = make_packed(batch, length, seed=seed)
    masked = corrupt(packed, Noise.of("train", 1), MaskedLM(rate=rate), VOCABULARY)
    restored = masked.input_ids.clone().reshape(-1)
    restored[masked.predicted_positions] = masked.targets
    assert (restored.numpy() == packed.input_ids.reshape(-1)).all()
    assert not np.isin(masked.targets.numpy(), VOCABULARY.special).any()
    per_row = np.bincount(masked.predicted_positions.numpy() // length, minlength=batch)
    assert (per_row == max(1, round(rate * (length - 2)))).all()


def test_of_the_predicted_positions_80_percent_are_masked_10_random_10_kept():
    packed = make_packed(512, 128)
    masked = corrupt(packed, Noise.of("train", 1), MaskedLM(), VOCABULARY)
    inputs = masked.input_ids.reshape(-1)[masked.predicted_positions]
    total = len(inputs)
    is_mask = (inputs == VOCABULARY.mask).float().mean().item()
    kept = (inputs == masked.targets).float().mean().item()
    # Three standard errors of a share; a random token equals the original in 1 of 995 draws.
    tolerance = 3 * (0.25 / total) ** 0.5
    assert is_mask == pytest.approx(0.8, abs=tolerance)
    assert kept == pytest.approx(0.1, abs=tolerance)
    assert not np.isin(inputs[inputs != VOCABULARY.mask].numpy(), VOCABULARY.special).any()


def test_masks_change_with_the_epoch_unless_they_are_static():
    first, second = make_packed(4, 64, epoch=0), make_packed(4, 64, epoch=1)
    noise = Noise.of("train", 1)

    def positions(packed: Packed, dynamic: bool) -> torch.Tensor:
        return corrupt(packed, noise, MaskedLM(dynamic=dynamic), VOCABULARY).predicted_positions

    assert not torch.equal(positions(first, True), positions(second, True))
    assert torch.equal(positions(first, False), positions(second, False))


def test_masking_a_sample_does_not_depend_on_its_batch():
    packed = make_packed(6, 32)
    alone = Packed(
        packed.input_ids[3:4], np.asarray([0, 32], np.int32), packed.sample_ids[3:4], packed.epochs[3:4]
    )
    noise = Noise.of("train", 1)
    together = corrupt(packed, noise, MaskedLM(), VOCABULARY).input_ids[3:4]
    assert torch.equal(together, corrupt(alone, noise, MaskedLM(), VOCABULARY).input_ids)


def test_every_position_is_predicted_equally_often():
    packed = make_packed(4000, 22)
    masked = corrupt(packed, Noise.of("train", 2), MaskedLM(rate=0.2), VOCABULARY)
    counts = np.bincount(masked.predicted_positions.numpy() % 22, minlength=22)[1:-1]
    expected = 4000 * 0.2
    assert np.abs(counts - expected).max() < 5 * (expected * 0.8) ** 0.5


def test_shares_over_one_are_refused():
    with pytest.raises(ValueError, match="must not exceed 1"):
        MaskedLM(mask_share=0.9, random_share=0.2)
