"""What holds for every objective: its noise is a function of the seed, the epoch and the sample alone."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.loading import Config
from pipeline.objectives import (
    bart_denoising,
    clm,
    distill,
    mbart_denoising,
    mlm,
    prefix_lm,
    rtd,
    span,
    t5_span_corruption,
    ul2_mixture_of_denoisers,
)
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import (
    UNK,
    in_epoch,
    many_texts_per_row,
    one_text_per_row,
    row_alone,
    rows_of,
    vocabulary_for,
)


def bart(**fields) -> Config:
    return bart_denoising.BartDenoising(**fields)


CASES: dict[str, tuple[ModuleType, Config]] = {
    **{f"mlm, {units}": (mlm, mlm.MaskedLM(units=units)) for units in ("token", "word", "ngram")},
    "span": (span, span.SpanMasking()),
    "rtd": (rtd, rtd.ReplacedTokenDetection()),
    "distill": (distill, distill.Distillation(teacher="t")),
    "clm": (clm, clm.CausalLM()),
    "prefix_lm": (prefix_lm, prefix_lm.PrefixLM()),
    "bart": (bart_denoising, bart()),
    "bart, overlapping": (bart_denoising, bart(permute_sentences=0, overlapping_spans=True)),
    "bart, masking": (bart_denoising, bart(permute_sentences=0, infilling_rate=0, masking_rate=0.15)),
    "bart, deletion": (bart_denoising, bart(permute_sentences=0, infilling_rate=0, deletion_rate=0.15)),
    "bart, permutation": (bart_denoising, bart(infilling_rate=0)),
    "bart, rotation": (bart_denoising, bart(permute_sentences=0, infilling_rate=0, rotation_probability=1)),
    "bart, all": (bart_denoising, bart(masking_rate=0.1, deletion_rate=0.1, rotation_probability=0.5)),
    "mbart": (mbart_denoising, mbart_denoising.MBartDenoising()),
    "t5": (t5_span_corruption, t5_span_corruption.SpanCorruption()),
    "t5, short": (t5_span_corruption, t5_span_corruption.SpanCorruption(rate=0.9, mean_span_length=1)),
    "ul2": (ul2_mixture_of_denoisers, ul2_mixture_of_denoisers.MixtureOfDenoisers()),
}
VOCABULARIES = {name: vocabulary_for(*case) for name, case in CASES.items()}
every_case = pytest.mark.parametrize("case", CASES)


def made(case: str, packed, seed: int = 1):
    """What a batch says of each of its rows."""
    objective, chosen = CASES[case]
    return rows_of(objective.corrupt(packed, Noise.of("train", seed), chosen, VOCABULARIES[case]), packed)


@every_case
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), length=st.integers(4, 90))
def test_a_sample_is_corrupted_alike_in_any_batch(case: str, seed: int, length: int):
    packed = many_texts_per_row(seed, 4, length)
    alone = [made(case, row_alone(packed, row))[0] for row in range(4)]
    assert made(case, packed) == alone


@every_case
def test_noise_changes_with_the_epoch_and_the_seed(case: str):
    packed = one_text_per_row(30, 60, num_sentences=6)
    first = made(case, packed)
    assert first == made(case, packed)
    for other in (made(case, in_epoch(packed, 1)), made(case, packed, seed=2)):
        assert (first != other) == (case != "clm")


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith(("bart", "mbart", "t5", "ul2"))])
def test_a_piece_knows_nothing_of_its_neighbours(case: str):
    packed = many_texts_per_row(8, 1, 120)
    changed = packed.input_ids.copy()
    behind = changed > UNK
    behind[0, : packed.cu_seqlens[2]] = False
    changed[behind] = np.sort(changed[behind])
    (before,), (after,) = (made(case, each) for each in (packed, replace(packed, input_ids=changed)))
    assert before[0] == after[0]
    assert before[1:] != after[1:]
