"""The installed DeepSpeed has everything that the engine uses of it; other versions are refused at the start."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from torch import nn

from cluster.artefacts.errors import ConfigError
from cluster.group import Rank
from pipeline.engine.deepspeed import configuration
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.interface import EngineSettings
from tests.pipeline.deepspeed_names import ATTRIBUTES, FILE_KEYS
from tests.pipeline.ranks import make_config

ROOT = Path(__file__).parents[2]
COMMON = {"commit", "compile", "create", "dynamic", "load", "loss_scale", "makedirs", "module", "save"}
"""Names in the lists that other code uses for things of its own."""


def test_installed_deepspeed_has_every_name_that_the_engine_uses():
    missing = [
        f"{owner}.{name}" for owner, names in ATTRIBUTES.items() for name in names if not defines(owner, name)
    ]
    missing += [
        f"{module} writes {name}"
        for module, names in FILE_KEYS.items()
        for name in names
        if not re.search(rf"\b{re.escape(name)}|{re.escape(name)}\b", source_of(module))
    ]
    assert missing == []


def test_the_list_of_names_is_what_the_engine_uses():
    code = "".join(path.read_text() for path in (ROOT / "pipeline/engine/deepspeed").glob("*.py"))
    names = {name for table in (ATTRIBUTES, FILE_KEYS) for names in table.values() for name in names}
    assert {name for name in names if name not in code} == set()


def test_no_other_module_names_what_is_inside_deepspeed():
    names = {name for table in (ATTRIBUTES, FILE_KEYS) for names in table.values() for name in names}
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(names - COMMON)))})\b")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in ("cluster", "data_prep", "models", "pipeline")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(ROOT / "pipeline/engine/deepspeed")
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_the_version_is_bounded_alike_for_installers_and_at_the_start():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (declared,) = (one for one in map(Requirement, lines) if one.name == "deepspeed")
    assert declared.specifier == configuration.SUPPORTED


@pytest.mark.parametrize("installed", ["0.19.7", "0.20.0", "1.0"])
def test_another_version_is_refused_at_the_start_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
):
    monkeypatch.setattr(configuration, "version", lambda name: installed)
    with pytest.raises(ConfigError) as caught:
        Engine(nn.Linear(2, 2), EngineSettings.of(make_config(tmp_path, tmp_path)), Rank(0, 1, 0, 1))
    assert installed in caught.value.problem
    assert ">=0.19.8" in caught.value.problem
    assert "-m pip install" in caught.value.next_step


def defines(owner: str, name: str) -> bool:
    """Whether a module, or a class of it or its bases, defines a name or assigns it to an attribute."""
    module, _, kind = owner.partition(":")
    place: Any = importlib.import_module(module)
    place = getattr(place, kind) if kind else place
    if hasattr(place, name):
        return True
    sources = [source_of(module)] if not kind else [inspect.getsource(one) for one in place.__mro__[:-1]]
    return any(re.search(rf"\.{re.escape(name)}\b", source) for source in sources)


def source_of(module: str) -> str:
    """The text of a module of DeepSpeed."""
    return inspect.getsource(importlib.import_module(module))
