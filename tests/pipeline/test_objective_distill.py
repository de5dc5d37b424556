"""Distillation: what is compared, and which teachers are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import ConfigError, MismatchError, ReferenceNotFoundError
from models.config import TransformerConfig
from models.distillation import DistilledLanguageModel
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.objectives import distill, mlm
from pipeline.objectives.base import input_entries, pin_references, resolve_references
from pipeline.objectives.distill import Distillation, TermWeights, check_fit, corrupt
from pipeline.objectives.mlm import MaskedLM
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import PAD, many_texts_per_row, vocabulary_for

VOCABULARY = vocabulary_for(mlm, MaskedLM())
NOISE = Noise.of("train", 1)
STUDENT = TransformerConfig(
    vocab_size=VOCABULARY.size,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    intermediate_size=32,
    max_positions=40,
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory saved by `transformers`, with the tokenizer of the data."""
    directory = tmp_path_factory.mktemp("teacher")
    network = transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            vocab_size=VOCABULARY.size,
            num_hidden_layers=4,
            hidden_size=16,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=42,
            layer_norm_eps=1e-5,
            type_vocab_size=1,
        )
    )
    network.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(VOCABULARY.tokenizer_json)
    return directory


def settings_for(teacher: Path, **others) -> Distillation:
    return Distillation(teacher=str(teacher), runs_dir=teacher.parent / "runs", **others)


def build_model(settings: Distillation, config: TransformerConfig) -> DistilledLanguageModel:
    return distill.build_model(settings, config, **resolve_references(settings, resolve_model))


def test_what_is_hidden_is_that_of_masked_language_modelling(teacher):
    packed = many_texts_per_row(0, 4, 40)
    masking = MaskedLM(rate=0.3, units="word")
    batch = corrupt(packed, NOISE, settings_for(teacher, masking=masking), VOCABULARY)
    plain = mlm.corrupt(packed, NOISE, masking, VOCABULARY)
    assert all(np.array_equal(batch.inputs[name], array) for name, array in plain.inputs.items())
    tokens = np.flatnonzero(packed.input_ids != PAD)
    assert np.array_equal(batch.inputs["soft_positions"], tokens)
    assert batch.counts == {**plain.counts, "soft": len(tokens), "cosine": len(tokens)}


def test_comparing_predicted_tokens_alone(teacher):
    packed = many_texts_per_row(0, 4, 40)
    settings = settings_for(teacher, soft_targets="predicted", weights=TermWeights(cosine=0))
    batch = corrupt(packed, NOISE, settings, VOCABULARY)
    assert np.array_equal(batch.inputs["soft_positions"], batch.inputs["predicted_positions"])
    assert batch.counts.keys() == distill.terms(settings).keys() == {"mlm", "soft"}


def test_weights_are_those_of_the_released_code(teacher):
    assert {name: term.weight for name, term in distill.terms(settings_for(teacher)).items()} == {
        "soft": 5.0,
        "mlm": 2.0,
        "cosine": 1.0,
    }


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
    batch = corrupt(many_texts_per_row(0, 4, 40), NOISE, settings, VOCABULARY)
    losses, _ = student(**{name: torch.from_numpy(array) for name, array in batch.inputs.items()})
    assert losses.keys() == batch.counts.keys() == distill.terms(settings).keys()
    assert all(loss.isfinite() for loss in losses.values())


def test_teacher_with_other_tokens_is_refused(teacher, tmp_path):
    parts = json.loads(VOCABULARY.tokenizer_json)
    vocabulary = parts["model"]["vocab"]
    vocabulary["Ġt7"], vocabulary["Ġt8"] = vocabulary["Ġt8"], vocabulary["Ġt7"]
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(teacher / file)
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    settings = settings_for(tmp_path)
    found = resolve_references(settings, resolve_model)
    with pytest.raises(MismatchError, match="other tokens than the data: 'Ġt7' is 7 here and 8 there"):
        check_fit(settings, STUDENT, VOCABULARY, **found)


def test_teacher_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ReferenceNotFoundError):
        build_model(Distillation(teacher="nobody", runs_dir=tmp_path), STUDENT)


def test_decoder_is_no_teacher(tmp_path):
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY.size, n_layer=1, n_embd=16, n_head=2, n_positions=40)
    ).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(VOCABULARY.tokenizer_json)
    with pytest.raises(MismatchError, match="kind decoder, but only encoders"):
        build_model(settings_for(tmp_path), STUDENT)


def test_student_that_does_not_fit_is_refused_with_the_way_out(teacher):
    with pytest.raises(
        ConfigError, match=r"does not fit its teacher.*intermediate_size 20 instead of 32"
    ) as caught:
        build_model(settings_for(teacher), replace(STUDENT, intermediate_size=20))
    assert "objective.start_from_teacher=false" in str(caught.value.next_step)
    build_model(settings_for(teacher, start_from_teacher=False), replace(STUDENT, intermediate_size=20))


def test_pairs_are_not_distilled():
    with pytest.raises(ValueError, match=r"masking\.pairs must be null"):
        Distillation(teacher="x", masking=MaskedLM(pairs="nsp"))


def test_a_run_holds_on_to_the_very_teacher_that_it_began_with(teacher, monkeypatch, tmp_path):
    monkeypatch.chdir(teacher.parent)
    began = pin_references(Distillation(teacher=teacher.name), resolve_model)
    monkeypatch.chdir(tmp_path)
    assert began.teacher == str(teacher)
    (entry,) = input_entries(resolve_references(began, resolve_model))
    assert (entry.kind, entry.uri) == ("checkpoint", str(teacher))
    assert [entry] == input_entries(resolve_references(settings_for(teacher), resolve_model))
