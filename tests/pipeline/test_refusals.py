"""What does not go together is refused before anything starts: by a typed error that names the key and the remedy."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from torch import nn

from cluster.artefacts.errors import (
    ClozeError,
    ConfigError,
    MismatchError,
    ReferenceNotFoundError,
)
from cluster.artefacts.storage import commit, staging_directory
from cluster.group import Rank
from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import validate
from pipeline.engine.deepspeed import configuration
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.interface import EngineSettings
from pipeline.objectives import OBJECTIVES
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.samples.formats import SINGLE_FORMATS
from pipeline.samples.noise import Noise
from tests.conftest import write_store
from tests.pipeline.ranks import make_config
from tests.published_networks import PRESETS

TINY: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 32,
    "max_positions": 64,
}
ELMO: dict[str, Any] = {"filters": [[1, 8], [2, 8]], "projection_size": 8, "cell_size": 16, "num_layers": 1}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def plain(store: Path, kind: str = "mlm", **changes: Any) -> dict[str, Any]:
    """A configuration of the objective with a network that carries it; changes are of its sections."""
    network = OBJECTIVES[kind].NETWORKS[0]
    sections: dict[str, dict[str, Any]] = {
        "data": {"stores": [{"path": str(store)}], "held_out": 0.1},
        "model": {"network": network, **(ELMO if network == "elmo" else TINY)},
        "objective": {"kind": kind},
        "batch": {"sequence_length": 64, "samples": 8, "micro_batch_size": 4},
        "optimizer": {"lr": 1e-3},
    }
    for name, values in changes.items():
        sections[name] |= values
    return {"name": "run", "steps": 10, **sections}


def opened(store: Path, kind: str = "mlm", **changes: Any) -> Inputs:
    config = validate(PretrainConfig, plain(store, kind, **changes), "run.yaml")
    return open_inputs(config, verify=False, resolve=resolve_model)


def open_objective(store: Path, kind: str, objective: Mapping[str, Any], **changes: Any) -> Inputs:
    """The same with these settings of the objective, and a network for texts of any length."""
    model = (
        {"positions": "rotary", "num_segments": 2 if "pairs" in objective else 0} if kind != "bilm" else {}
    )
    return opened(store, kind, objective=objective, model=model, **changes)


def refusal(content: Any, error: type[ClozeError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        validate(PretrainConfig, content, "run.yaml")
    return str(caught.value)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_objective_is_refused_on_every_network_that_cannot_carry_it(kind: str, store: Path):
    teacher = {"teacher": "some-run"} if kind == "distill" else {}
    for network in {"encoder", "decoder", "encoder_decoder", "elmo"} - set(OBJECTIVES[kind].NETWORKS):
        content = plain(store, kind, objective=teacher)
        content["model"] = {"network": network, **(ELMO if network == "elmo" else TINY)}
        assert f"needs model.network {OBJECTIVES[kind].NETWORKS[0]}, not {network}" in refusal(content)


@pytest.mark.parametrize("kind", ["mlm", "clm", "bart_denoising", "mbart_denoising", "t5_span_corruption"])
def test_text_longer_than_the_positions_is_refused_in_every_phase(kind: str, store: Path):
    phases = [{"steps": 1, "sequence_length": 32}, {"steps": 1, "sequence_length": 65}]
    assert "batch.phases.1.sequence_length" in refusal(plain(store, kind, batch={"phases": phases}))
    message = refusal(plain(store, kind, batch={"sequence_length": 65}))
    assert "set model.max_positions to 65 or more" in message
    opened(store, kind, batch={"sequence_length": 65}, model={"positions": "rotary"})


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("t5_span_corruption", {"objective": {"rate": 0.9}}, ["set model.max_positions to 316 or more"]),
        ("mlm", {"objective": {"pairs": "nsp"}, "model": {"num_segments": 1}}, ["model.num_segments"]),
        ("span", {"objective": {"pairs": "nsp"}, "model": {"num_segments": 0}}, ["model.num_segments"]),
        ("mlm", {"model": {"num_heads": 0}}, ["model: num_heads must be"]),
        ("mlm", {"optimizer": {"lr": float("inf")}}, ["optimizer.lr", "finite"]),
        (
            "mlm",
            {"batch": {"sequence_length": 99, "format": "segment_pair"}, "model": {"network": "decoder"}},
            ["objective.kind = ", "batch.sequence_length = ", "batch.format = "],
        ),
    ],
)
def test_settings_that_do_not_go_together_are_all_named_by_key(
    kind: str, changes: dict[str, Any], said: list[str], store: Path
):
    message = refusal(plain(store, kind, **changes))
    assert all(part in message for part in said), message


@pytest.mark.parametrize("format", SINGLE_FORMATS)
@pytest.mark.parametrize(
    "kind", ["bart_denoising", "mbart_denoising", "t5_span_corruption", "ul2_mixture_of_denoisers"]
)
def test_no_piece_has_more_tokens_than_the_configuration_was_checked_for(kind: str, format: str, store: Path):
    inputs = opened(store, kind, batch={"format": format}, model={"max_positions": 128})
    most = max(64, inputs.config.reading.positions)
    for first in range(0, 60, 4):
        batch = inputs.corrupt(inputs.train.batch(np.arange(first, first + 4)), Noise.of("train", 1)).inputs
        sizes = []
        for ids, boundaries in (("input_ids", "cu_seqlens"), ("decoder_input_ids", "decoder_cu_seqlens")):
            rows, length = batch[ids].shape
            ends = batch[boundaries] if boundaries in batch else np.arange(rows + 1) * length
            sizes.append(np.diff(ends))
            assert sizes[-1].max() <= most
        # What the decoder has can look at something.
        assert (sizes[0][sizes[1] > 0] > 0).all()


@pytest.mark.parametrize(
    ("kind", "changes", "error", "said"),
    [
        ("t5_span_corruption", {"model": {"vocab_size": 100}}, MismatchError, "need 300"),
        ("bilm", {}, MismatchError, "word_lexicon"),
        (
            "rtd",
            {
                "model": {"positions": "rotary", "num_heads": 4},
                "objective": {"generator": {"hidden_share": 0.3}},
            },
            ConfigError,
            r"objective\.generator",
        ),
        ("distill", {"objective": {"teacher": "nobody", "runs_dir": "."}}, ReferenceNotFoundError, "nobody"),
    ],
)
def test_networks_that_do_not_fit_the_tokens_or_the_teacher_are_refused_at_once(
    kind: str, changes: dict[str, Any], error: type[ClozeError], said: str, store: Path
):
    with pytest.raises(error, match=said):
        opened(store, kind, **changes)
    assert opened(store, "t5_span_corruption", model={"vocab_size": 301}).model.vocab_size == 301


def test_teachers_that_are_no_encoders_or_have_other_tokens_are_refused_at_once(store: Path, tmp_path: Path):
    def write_teacher(preset: str, network: type[nn.Module]) -> dict[str, Any]:
        directory, shape = tmp_path / preset, replace(PRESETS[preset], **TINY, vocab_size=200)
        model = network(shape)
        init_weights(model, 1)
        save_hf_directory(directory, model.state_dict(), shape)
        shutil.copy(store / "tokenizer.json", directory)
        return {"teacher": str(directory), "start_from_teacher": False}

    with pytest.raises(MismatchError, match="only encoders"):
        opened(store, "distill", objective=write_teacher("gpt2", CausalLanguageModel))
    teacher = write_teacher("roberta-base", MaskedLanguageModel)
    assert opened(store, "distill", objective=teacher).vocabulary.size == 200
    file = tmp_path / "roberta-base" / "tokenizer.json"
    file.write_text(file.read_text().replace('"w7"', '"seven"'))
    with pytest.raises(MismatchError, match="other tokens"):
        opened(store, "distill", objective=teacher)


def test_deepspeed_is_bounded_alike_for_installers_and_at_the_start():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (declared,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "deepspeed")
    assert declared.specifier == configuration.SUPPORTED


@pytest.mark.parametrize("installed", ["0.19.7", "0.20.0", "1.0"])
def test_another_deepspeed_is_refused_at_the_start_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
):
    monkeypatch.setattr(configuration, "version", lambda name: installed)
    with pytest.raises(ConfigError, match=installed) as caught:
        Engine(nn.Linear(2, 2), EngineSettings.of(make_config(tmp_path, tmp_path)), Rank(0, 1, 0, 1))
    assert "-m pip install" in caught.value.next_step


@pytest.mark.parametrize(
    ("documents", "changes", "key"),
    [
        pytest.param(2, {"batch": {"sequence_length": 8}}, r"data\.held_out", id="no document to hold out"),
        pytest.param(
            40, {"objective": {"pairs": "nsp"}, "model": {"num_segments": 2}}, "sentences", id="no pair"
        ),
        pytest.param(40, {"langs": ["xx"]}, "it has en", id="no document in the language"),
    ],
)
def test_documents_that_give_no_sample_are_refused_before_training(
    documents: int, changes: dict[str, Any], key: str, tmp_path: Path
):
    store = write_store(tmp_path / "small", num_documents=documents)
    if "langs" in changes:
        changes = {"data": {"stores": [{"path": str(store), **changes}]}}
    with pytest.raises(ConfigError, match=key):
        opened(store, **changes).require_samples()


@pytest.fixture
def one_special_token(tmp_path: Path) -> Path:
    """A store like those of GPT-2's published vocabulary: one token begins, ends and pads."""
    original = write_store(tmp_path / "original", vocab_size=60)
    tokenizer = (original / "tokenizer.json").read_text()
    for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        tokenizer = tokenizer.replace(f'"{name}"', '"<|endoftext|>"' if name == "<s>" else f'"w{name[1:-1]}"')
    staging = staging_directory(tmp_path / "tokens", "test")
    shutil.copytree(original, staging, ignore=shutil.ignore_patterns("manifest.json"))
    (staging / "tokenizer.json").write_text(tokenizer)
    facts = {"vocab_size": 60, "special_tokens": dict.fromkeys(("bos", "pad", "eos", "unk"), 0)}
    commit(staging, tmp_path / "tokens", "tokens", config=facts)
    return tmp_path / "tokens"


@pytest.mark.parametrize("kind", ["clm", "prefix_lm"])
def test_end_of_text_is_learned_though_the_tokenizer_pads_with_it(kind: str, one_special_token: Path):
    inputs = opened(one_special_token, kind, batch={"format": "doc_sentences"})
    assert inputs.vocabulary["pad"] == 60
    packed = inputs.train.batch(np.arange(4))
    batch = inputs.corrupt(packed, Noise.of("train", 1)).inputs
    ends = np.flatnonzero(np.diff(packed.cu_seqlens) > 0)
    is_text = packed.input_ids.reshape(-1)[packed.cu_seqlens[:-1][ends]] != 60
    assert (batch["targets"] == 0).sum() == is_text.sum()
    assert not (batch["targets"] == 60).any()
