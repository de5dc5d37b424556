"""Distillation: what is compared, and how a student begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from models.distillation import DistilledLanguageModel
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.objectives.base import input_entries, pin_references, resolve_references
from pipeline.objectives.distill import Distillation, TermWeights
from pipeline.objectives.mlm import MaskedLM
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import many_texts_per_row, vocabulary_for

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
