"""Facts of networks for dry runs: remembered, and never of a network that cannot be built."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ConfigError
from models.initialization import without_memory
from models.weights import count_parameters
from pipeline.config.loading import load_config
from pipeline.objectives.registry import build_model
from pipeline.pretrain import network_facts as module
from pipeline.run.config import PretrainConfig
from tests.conftest import write_store

ROOT = Path(__file__).parents[2]
DRY_RUN = """
import sys
from pipeline.commands.verbs import app
from pipeline.pretrain import network_facts
network_facts._may_have_gpus = lambda: False
store = "data.stores=[{path: %s}]" % sys.argv[1]
try: app(["pretrain", "roberta-tiny", store, "--dry-run", "--json"])
finally: print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine without GPUs."""
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_may_have_gpus", lambda: False)
    return tmp_path / "networks"


def facts_of(*overrides: str) -> Mapping[str, Any]:
    config = load_config(PretrainConfig, ROOT / "configs/pretrain/bert-tiny.yaml", overrides)
    return module.network_facts(config, replace(config.model, vocab_size=1000), {})


def test_second_dry_run_says_the_same_without_torch(tmp_path: Path):
    write_store(tmp_path / "tokens", num_documents=400)
    told = []
    for imported in ("True", "False"):
        command = [sys.executable, "-c", DRY_RUN, str(tmp_path / "tokens")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert done.stderr.split()[-1] == imported
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]
    assert min(told[0][name] for name in ("parameters", "samples per epoch", "held-out documents")) > 0


def test_remembered_facts_are_those_of_the_network(cache: Path):
    config = load_config(PretrainConfig, ROOT / "configs/pretrain/bert-tiny.yaml", ())
    with without_memory():
        network = build_model(config.objective, replace(config.model, vocab_size=1000), {})
    assert [facts_of()["parameters"] for _ in range(2)] == [count_parameters(network)] * 2
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("change", ["model.num_layers=3", "precision=bf16", "compute.attention_backend=sdpa"])
def test_other_settings_have_other_facts(change: str, cache: Path):
    facts_of()
    assert facts_of(change) != facts_of()
    assert len(list(cache.iterdir())) == 2


def test_damaged_facts_are_made_anew(cache: Path):
    found = facts_of()
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes().replace(b'"parameters":', b'"parameters":1'))
    assert facts_of() == found


def test_what_does_not_fit_is_refused_every_time(cache: Path):
    for _ in range(2):
        with pytest.raises(ConfigError, match="varlen is not possible"):
            facts_of("compute.attention_backend=varlen")
    assert not cache.exists()
