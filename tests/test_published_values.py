"""Configurations named for a paper hold the paper's values, one by one, and say where they mean to differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from torch import nn

from data_prep.config import PreparationConfig
from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.elmo.encoder import ElmoEncoder
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.stacks import Encoder
from models.weights import count_parameters
from pipeline.config.loading import load_config, load_plain, to_plain
from pipeline.run.config import PretrainConfig
from pipeline.run.shared_settings import NetworkChoice
from tests.published_networks import MILLIONS, PRESETS

CONFIGS = Path(__file__).parents[1] / "configs"
TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published_values.yaml").read_text())
MODELS, PRETRAIN, MACHINE = TABLE["models"], TABLE["pretrain"], tuple(TABLE["machine"])
OWN = {"models": {"roberta-mini", "roberta-small"}, "pretrain": {"roberta-small-cpu"}}
"""Of no paper, as are all tiny ones."""


def values_of(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key, the value that a configuration must have; what is ours stands before what was published."""
    rows = {**entry["published"], **entry.get("ours", {})}
    return {f"{prefix}{key}": row[0] for key, row in rows.items()}


def flat(value: Any, known: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in nested settings; a list is one value where the table has it so."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and key not in known:
        items = list(enumerate(value))
    if not items:
        yield key, [list(one) for one in value] if isinstance(value, tuple | list) and value else value
    for name, own in items:
        yield from flat(own, known, f"{key}.{name}".lstrip("."))


def is_machine(key: str) -> bool:
    return any(key == own or key.startswith(f"{own}.") for own in MACHINE)


@pytest.mark.parametrize("folder", ["models", "pretrain"])
def test_every_published_configuration_is_in_the_table(folder: str):
    names = {path.stem for path in (CONFIGS / folder).glob("*.yaml") if not path.stem.endswith("-tiny")}
    assert TABLE[folder].keys() == names - OWN[folder]


@pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder in ("models", "pretrain") for name in TABLE[folder]]
)
def test_configurations_have_the_published_values_and_no_others(folder: str, name: str):
    path, entry = CONFIGS / folder / f"{name}.yaml", TABLE[folder][name]
    network = values_of(MODELS[entry["model"]], "model.") if "model" in entry else {}
    wanted = network | values_of(entry)
    if folder == "models":
        written: Any = OmegaConf.to_container(OmegaConf.load(path).model)
        resolved = asdict(TransformerConfig(**written))
    else:
        written = load_plain(PretrainConfig, path)
        resolved = to_plain(load_config(PretrainConfig, path))
    found = dict(flat(resolved, wanted))
    assert {key: found.get(key) for key in wanted} == wanted
    unknown = {key for key, _ in flat(written, wanted) if key not in wanted and not is_machine(key)}
    assert unknown == set(), "neither published nor named as ours"


@pytest.mark.parametrize("name", PRETRAIN)
def test_runs_read_stores_of_the_published_vocabulary(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_DATA", "corpora")
    store, kind, size, _ = PRETRAIN[name]["store"]
    config = load_config(PretrainConfig, CONFIGS / "pretrain" / f"{name}.yaml")
    data = load_config(PreparationConfig, CONFIGS / "data" / f"{store}.yaml")
    assert [one.path for one in config.data.stores] == [data.out / "tokens"]
    assert (data.tokenizer.kind, data.tokenizer.vocab_size) == (kind, size)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", PRETRAIN)
def test_runs_train_as_many_parameters_as_were_published(name: str):
    millions, _, *part = PRETRAIN[name]["parameters"]
    config = load_config(PretrainConfig, CONFIGS / "pretrain" / f"{name}.yaml")
    size = config.model.vocab_size or PRETRAIN[name]["store"][2]
    with torch.device("meta"):
        network = build(config, replace(config.model, vocab_size=size), *part)
    assert count_parameters(network) / 1e6 == pytest.approx(millions, rel=0.015)


def build(config: PretrainConfig, model: NetworkChoice, part: str = "whole") -> nn.Module:
    """The network, or the part of it that a paper counts."""
    if isinstance(model, ElmoConfig):
        return ElmoEncoder(model)
    assert isinstance(model, TransformerConfig)
    if part == "encoder":
        return Encoder(model)
    if part == "encoder_and_head" or config.objective.kind == "distill":
        return MaskedLanguageModel(model)
    return config.objective.build_model(model, {})


@pytest.mark.parametrize("name", PRESETS)
def test_networks_have_the_published_number_of_parameters(name: str):
    config = PRESETS[name]
    with torch.device("meta"):
        if name.startswith("electra"):
            model = Encoder(config)
        elif config.network == "encoder":
            model = MaskedLanguageModel(config, pair="nsp" if name.startswith("bert") else None)
        else:
            model = (CausalLanguageModel if config.network == "decoder" else SequenceToSequence)(config)
    assert count_parameters(model) / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)
    assert all(parameter.is_meta for parameter in model.parameters())
