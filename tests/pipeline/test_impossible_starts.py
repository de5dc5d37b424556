"""What a new start cannot mend ends a run with a ConfigError, which no group tries again."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from pipeline.engine import network
from pipeline.engine.deepspeed import kernels
from tests.pipeline.ranks import make_config


def raising(error: Exception) -> SimpleNamespace:
    def make(*_: object, **__: object) -> None:
        raise error

    return SimpleNamespace(FusedAdam=make)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("Error building extension 'fused_adam'"), ConfigError),
        (OSError("CUDA_HOME environment variable is not set"), ConfigError),
        (FileNotFoundError(errno.ENOENT, "no nvcc"), ConfigError),
        (OSError(errno.ESTALE, "for a moment"), OSError),
        (torch.OutOfMemoryError("for a moment"), torch.OutOfMemoryError),
    ],
)
def test_an_operator_that_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, raised: type[Exception]
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "import_module", lambda name: raising(error))
    with pytest.raises(raised):
        kernels.make_kernel("FusedAdam", [])


def test_compilation_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "has_compiler", lambda: False)
    config = make_config(tmp_path, tmp_path, "compute.compile=true")
    with pytest.raises(ConfigError):
        network.prepare_network(
            torch.nn.Linear(1, 1), TransformerConfig(vocab_size=9), config, torch.device("cpu")
        )
