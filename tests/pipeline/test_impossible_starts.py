"""Settings that a new start cannot mend end a run with a ConfigError, which no group tries again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from pipeline.engine.device import prepare_network
from tests.pipeline.ranks import make_config


def test_compilation_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    config = make_config(tmp_path, tmp_path, "compute.compile=true")
    with pytest.raises(ConfigError):
        prepare_network(torch.nn.Linear(1, 1), TransformerConfig(vocab_size=9), config, torch.device("cpu"))
