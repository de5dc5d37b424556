"""Which run a configuration goes on with, and settings that a new start cannot mend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from pipeline.engine.device import deterministic_algorithms, prepare_network
from pipeline.pretrain.launch import find_same_run
from tests.conftest import write_store
from tests.pipeline.ranks import make_config, make_run


def test_same_run_has_the_same_name_settings_and_data_and_any_machines(tmp_path: Path):
    store = write_store(tmp_path / "tokens")
    run = make_run(tmp_path, store, "tiny-1")
    config = run.config()
    assert find_same_run(config) == run
    machines = {"checkpoint": config.checkpoint.model_copy(update={"every_steps": 3})}
    assert find_same_run(config.model_copy(update=machines)) == run
    for changed in ({"name": "another"}, {"seed": 7}, {"steps": (config.steps or 0) + 1}):
        assert find_same_run(config.model_copy(update=changed)) is None


def test_compilation_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    config = make_config(tmp_path, tmp_path, "compute.compile=true")
    with pytest.raises(ConfigError):
        prepare_network(torch.nn.Linear(1, 1), TransformerConfig(vocab_size=9), config, torch.device("cpu"))


VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def test_algorithms_are_deterministic_inside_the_block_only_and_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(VARIABLE, raising=False)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
        assert VARIABLE not in os.environ
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ[VARIABLE] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filled
    monkeypatch.setenv(VARIABLE, ":16:8")
    refused = "some_kernel_cuda does not have a deterministic implementation, but you set"
    with pytest.raises(ConfigError, match="some_kernel_cuda") as caught, deterministic_algorithms(True):
        raise RuntimeError(refused)
    assert os.environ[VARIABLE] == ":16:8"
    assert "compute.deterministic=false" in str(caught.value.next_step)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="other"), deterministic_algorithms(True):
        raise RuntimeError("other")


@pytest.mark.parametrize(
    ("variables", "arguments", "code", "message"),
    [
        ({"RANK": "1"}, ["runs/none"], 10, "RANK=1 WORLD_SIZE= LOCAL_RANK="),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, ["runs/none"], 10, "LOCAL_RANK=x"),
        ({}, [], 2, "RUN_DIRECTORY"),
    ],
)
def test_processes_that_no_launcher_started_are_refused(
    variables: dict[str, str], arguments: list[str], code: int, message: str
):
    command = [sys.executable, "-m", "pipeline.pretrain", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
