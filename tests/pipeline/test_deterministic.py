"""`compute.deterministic`: deterministic algorithms while a run trains, and a typed refusal where there are none."""

from __future__ import annotations

import os

import pytest
import torch

from cluster.artefacts.errors import ConfigError
from pipeline.engine.device import deterministic_algorithms


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def test_algorithms_are_deterministic_inside_the_block_only():
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filled


def test_a_deterministic_workspace_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_algorithms(True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_nothing_changes_unless_it_is_wanted():
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_an_operation_without_a_deterministic_algorithm_is_refused_with_the_setting_to_change():
    refused = "some_kernel_cuda does not have a deterministic implementation, but you set"
    with pytest.raises(ConfigError, match="some_kernel_cuda") as caught, deterministic_algorithms(True):
        raise RuntimeError(refused)
    assert "compute.deterministic=false" in str(caught.value.next_step)
    assert not torch.are_deterministic_algorithms_enabled()


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="other"), deterministic_algorithms(True):
        raise RuntimeError("other")
