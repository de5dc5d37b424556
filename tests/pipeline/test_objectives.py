"""What holds for every objective: noise of seed, epoch and sample alone, text that can be rebuilt; and distillation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from models.distillation import DistilledLanguageModel
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import Config
from pipeline.objectives.bart_denoising import BartDenoising
from pipeline.objectives.base import Batch, Objective, input_entries, pin_references, resolve_references
from pipeline.objectives.clm import CausalLM
from pipeline.objectives.distill import Distillation, TermWeights
from pipeline.objectives.mbart_denoising import MBartDenoising
from pipeline.objectives.mlm import MaskedLM
from pipeline.objectives.prefix_lm import PrefixLM
from pipeline.objectives.rtd import ReplacedTokenDetection
from pipeline.objectives.span import SpanMasking
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.ul2_mixture_of_denoisers import Denoiser, MixtureOfDenoisers
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    PAD,
    UNK,
    Pair,
    hidden_spans,
    in_epoch,
    many_texts_per_row,
    one_text_per_row,
    pairs,
    row_alone,
    rows_of,
    sentinels_of,
    texts,
    vocabulary_for,
    with_spans,
)
from tests.pipeline.test_denoising import BART_SETTINGS, OF_UL2, rows_of_raw_tokens

CASES: dict[str, Objective] = {
    **{f"mlm, {units}": MaskedLM(units=units) for units in ("token", "word", "ngram")},
    "span": SpanMasking(),
    "rtd": ReplacedTokenDetection(),
    "distill": Distillation(teacher="t"),
    "clm": CausalLM(),
    "prefix_lm": PrefixLM(),
    **BART_SETTINGS,
    "mbart": MBartDenoising(),
    "t5": SpanCorruption(),
    "t5, short": SpanCorruption(rate=0.9, mean_span_length=1),
    "ul2": MixtureOfDenoisers(),
}


VOCABULARIES = {name: vocabulary_for(case) for name, case in CASES.items()}
every_case = pytest.mark.parametrize("case", CASES)
SEEDS, LENGTHS = st.integers(0, 10**6), st.integers(4, 90)


def corrupted(case: str, packed: Packed, seed: int = 1) -> Batch:
    return CASES[case].corrupt(packed, Noise.of("train", seed), VOCABULARIES[case])


def made(case: str, packed: Packed, seed: int = 1) -> list[Any]:
    """What a batch says of each of its rows."""
    return rows_of(corrupted(case, packed, seed), packed)


def cases_of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [name for name in CASES if name.startswith(kinds)])


@every_case
@given(seed=SEEDS, length=LENGTHS)
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


@cases_of("bart", "mbart", "t5", "ul2")
def test_a_piece_knows_nothing_of_its_neighbours(case: str):
    packed = many_texts_per_row(8, 1, 120)
    changed = packed.input_ids.copy()
    behind = changed > UNK
    behind[0, : packed.cu_seqlens[2]] = False
    changed[behind] = np.sort(changed[behind])
    (before,), (after,) = (made(case, each) for each in (packed, replace(packed, input_ids=changed)))
    assert before[0] == after[0]
    assert before[1:] != after[1:]


@cases_of("mlm", "span", "rtd", "distill")
@given(seed=SEEDS, length=LENGTHS)
def test_text_is_rebuilt_from_masked_inputs_and_special_tokens_are_never_predicted(
    case: str, seed: int, length: int
):
    packed, vocabulary = many_texts_per_row(seed, 4, length), VOCABULARIES[case]
    inputs, counts = (batch := corrupted(case, packed)).inputs, batch.counts
    ids, restored = packed.input_ids.reshape(-1), inputs["input_ids"].copy().reshape(-1)
    restored[inputs["predicted_positions"]] = inputs["targets"]
    assert (restored == ids).all()
    assert not vocabulary.is_special[inputs["targets"]].any()
    assert (np.diff(inputs["predicted_positions"]) > 0).all()
    assert counts["mlm"] == len(inputs["targets"])
    assert all(inputs[name].dtype == np.int64 for name in ("input_ids", "predicted_positions", "targets"))
    tokens = np.flatnonzero(ids != PAD)
    if case == "rtd":
        assert (inputs["input_ids"].reshape(-1)[inputs["predicted_positions"]] == vocabulary["mask"]).all()
        assert np.array_equal(inputs["token_positions"], tokens)
        assert counts["rtd"] == len(tokens)
    if case == "distill":
        assert np.array_equal(inputs["soft_positions"], tokens)
        assert counts["soft"] == counts["cosine"] == len(tokens)


@cases_of("t5", "ul2")
@given(seed=SEEDS, batch=st.integers(1, 6), length=st.integers(4, 120))
def test_sentinels_and_spans_give_the_text_back(case: str, seed: int, batch: int, length: int):
    packed, vocabulary = many_texts_per_row(seed, batch, length), VOCABULARIES[case]
    sentinels = sentinels_of(vocabulary)
    modes = {vocabulary[mode] for mode in ("[NLU]", "[S2S]", "[NLG]") if mode in vocabulary.roles}
    written = [[token for token in text if token not in (BOS, EOS)] for text in texts(packed)]
    found = pairs(corrupted(case, packed))
    rebuilt = [with_spans(pair, sentinels) for pair in found]
    assert [text[bool(modes) :] for text in rebuilt] == [text for text in written if len(text) >= 2]
    for pair in found:
        assert pair.source[-1] == pair.targets[-1] == EOS
        assert pair.decoder_inputs == [PAD, *pair.targets[:-1]]
        assert not {BOS, PAD} & {*pair.source, *pair.targets}
        assert not modes or pair.source[0] in modes
    # All pieces of a sample have its denoiser.
    assert not modes or len({(pair.row, pair.source[0]) for pair in found}) == len(
        {pair.row for pair in found}
    )


@cases_of("clm", "prefix_lm")
@given(seed=SEEDS, batch=st.integers(1, 4), length=LENGTHS)
def test_decoders_predict_each_next_token_of_a_piece_after_its_prefix(
    case: str, seed: int, batch: int, length: int
):
    packed = many_texts_per_row(seed, batch, length)
    made, flat = corrupted(case, packed), packed.input_ids.reshape(-1)
    prefixes = (flat[packed.cu_seqlens[:-1]] != PAD).astype(np.int32)
    if case == "prefix_lm":
        prefixes = made.inputs["prefix_lengths"]
    assert (made.inputs["input_ids"] == packed.input_ids).all()
    assert (made.inputs.get("cu_seqlens", packed.cu_seqlens) == packed.cu_seqlens).all()
    assert prefixes.dtype == np.int32
    expected = {}
    for start, stop, prefix in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], prefixes, strict=True):
        if flat[start] == PAD:
            assert prefix == 0
            continue
        assert 1 <= prefix <= max(1, stop - start - 1)
        expected |= {place - 1: int(flat[place]) for place in range(start + prefix, stop)}
    predicted = made.inputs["predicted_positions"].tolist()
    assert dict(zip(predicted, made.inputs["targets"].tolist(), strict=True)) == expected
    assert predicted == sorted(expected)
    assert made.counts == {"clm": len(expected)}


def gone_from(pair: Pair) -> list[int]:
    return [token for token in pair.targets if token not in pair.source]


def order_of(pair: Pair) -> list[tuple[int, ...]]:
    return [tuple(pair.source)]


def first_hidden(pair: Pair) -> list[int]:
    """Where the only span begins, which hides neighbours."""
    ((first, *others),) = hidden_spans(pair, sentinels_of(OF_UL2))
    assert others == list(range(first + 1, first + 1 + len(others)))
    return [first]


def suffix_begins(pair: Pair) -> list[int]:
    assert pair.source[-2:] == [sentinels_of(OF_UL2)[0], EOS]
    return first_hidden(pair)


def ul2(**fields: Any) -> MixtureOfDenoisers:
    return MixtureOfDenoisers(denoisers=(Denoiser(**fields),))


@pytest.mark.parametrize(
    ("objective", "packed", "outcomes", "number"),
    [
        (BART_SETTINGS["bart, masking"], one_text_per_row(4000, 22), gone_from, 20),
        (BART_SETTINGS["bart, deletion"], one_text_per_row(4000, 22), gone_from, 20),
        (BART_SETTINGS["bart, permutation"], one_text_per_row(6000, 14, num_sentences=4), order_of, 24),
        (BART_SETTINGS["bart, rotation"], one_text_per_row(6000, 14), lambda pair: [pair.source[1]], 12),
        # Of 9 tokens 4 are hidden in 2 spans: 3 ways to cut the hidden, 4 ways to cut the shown.
        (SpanCorruption(rate=0.45, mean_span_length=2), rows_of_raw_tokens(12_000, 9), order_of, 3 * 4),
        # A quarter of 40 tokens on average, which the end of the text has.
        (ul2(kind="S", rate=0.25), one_text_per_row(3000, 42), suffix_begins, 19),
        (ul2(kind="X", rate=0.15, mean_span_length=64), one_text_per_row(6000, 42), first_hidden, 35),
    ],
    ids=["masked", "deleted", "order of sentences", "rotation", "mask of T5", "suffix", "single long span"],
)
def test_all_outcomes_of_a_draw_are_equally_likely(
    objective: Objective, packed: Packed, outcomes: Callable[[Pair], list[Any]], number: int
):
    made = pairs(objective.corrupt(packed, Noise.of("train", 1), vocabulary_for(objective)))
    counts = Counter(outcome for pair in made for outcome in outcomes(pair))
    assert len(counts) == number
    assert chisquare([*counts.values()]).pvalue > 1e-3


def test_every_split_into_prefix_and_rest_is_equally_likely():
    made = corrupted("prefix_lm", one_text_per_row(8000, 17))
    counts = np.bincount(made.inputs["prefix_lengths"], minlength=17)
    assert (counts[0], len(counts)) == (0, 17)
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_padding_inside_of_a_piece_is_not_predicted():
    packed = one_text_per_row(2, 8)
    packed.input_ids[1, 6:] = PAD
    made = corrupted("clm", packed)
    assert "cu_seqlens" not in made.inputs, "rows of one piece need no boundaries"
    assert made.inputs["predicted_positions"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (MaskedLM, {"mask_share": 0.9, "random_share": 0.2}),
        (BartDenoising, {"permute_sentences": 0, "infilling_rate": 0}),
        (Distillation, {"teacher": "x", "masking": {"pairs": "nsp"}}),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: type[Config], fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        settings(**fields)


VOCABULARY = vocabulary_for(MaskedLM())
NOISE = Noise.of("train", 1)
SIZES = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": VOCABULARY.size}
STUDENT = TransformerConfig(num_layers=2, num_heads=2, max_positions=40, **SIZES)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory saved by `transformers`, with the tokenizer of the data."""
    directory = tmp_path_factory.mktemp("teacher")
    network = transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            num_hidden_layers=4,
            num_attention_heads=2,
            max_position_embeddings=42,
            layer_norm_eps=1e-5,
            type_vocab_size=1,
            **SIZES,
        )
    )
    network.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(VOCABULARY.tokenizer_json)
    return directory


def settings_for(teacher: Path, **others) -> Distillation:
    return Distillation(teacher=str(teacher), runs_dir=teacher.parent / "runs", **others)


def build_model(settings: Distillation, config: TransformerConfig) -> DistilledLanguageModel:
    return settings.build_model(config, resolve_references(settings, resolve_model))


def test_what_is_hidden_is_that_of_masked_language_modelling_and_compared_as_in_the_released_code():
    packed, masking = many_texts_per_row(0, 4, 40), MaskedLM(rate=0.3, units="word")
    batch = Distillation(teacher="t", masking=masking).corrupt(packed, NOISE, VOCABULARY)
    plain = masking.corrupt(packed, NOISE, VOCABULARY)
    assert all(np.array_equal(batch.inputs[name], array) for name, array in plain.inputs.items())
    weights = {name: term.weight for name, term in Distillation(teacher="t").terms().items()}
    assert weights == {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}
    settings = Distillation(teacher="t", soft_targets="predicted", weights=TermWeights(cosine=0))
    batch = settings.corrupt(packed, NOISE, VOCABULARY)
    assert np.array_equal(batch.inputs["soft_positions"], batch.inputs["predicted_positions"])
    assert batch.counts.keys() == settings.terms().keys() == {"mlm", "soft"}


def test_student_starts_from_a_hugging_face_teacher_and_trains_on_a_batch(teacher):
    settings = settings_for(teacher)
    student = build_model(settings, STUDENT)
    init_weights(student, seed=0)
    theirs = transformers.RobertaForMaskedLM.from_pretrained(teacher).eval()
    own, others = student.state_dict(), theirs.state_dict()
    for name, other in {
        "embeddings.tokens": "embeddings.word_embeddings",
        "transformer.layers.0.feed_forward.down": "encoder.layer.0.output.dense",
        "transformer.layers.1.feed_forward.down": "encoder.layer.2.output.dense",
    }.items():
        assert torch.equal(own[f"encoder.{name}.weight"], others[f"roberta.{other}.weight"])
    batch = settings.corrupt(many_texts_per_row(0, 4, 40), NOISE, VOCABULARY)
    losses, _ = student(**{name: torch.from_numpy(array) for name, array in batch.inputs.items()})
    assert losses.keys() == batch.counts.keys() == settings.terms().keys()
    assert all(loss.isfinite() for loss in losses.values())


def test_student_that_does_not_fit_is_refused_with_the_way_out(teacher):
    narrow = replace(STUDENT, intermediate_size=20)
    with pytest.raises(ConfigError, match="intermediate_size") as caught:
        build_model(settings_for(teacher), narrow)
    assert "objective.start_from_teacher=false" in str(caught.value.next_step)
    build_model(settings_for(teacher, start_from_teacher=False), narrow)


def test_a_run_holds_on_to_the_very_teacher_that_it_began_with(teacher, monkeypatch, tmp_path):
    monkeypatch.chdir(teacher.parent)
    began = pin_references(Distillation(teacher=teacher.name), resolve_model)
    monkeypatch.chdir(tmp_path)
    assert began.teacher == str(teacher)
    (entry,) = input_entries(resolve_references(began, resolve_model))
    assert (entry.kind, entry.uri) == ("checkpoint", str(teacher))
    assert [entry] == input_entries(resolve_references(settings_for(teacher), resolve_model))
