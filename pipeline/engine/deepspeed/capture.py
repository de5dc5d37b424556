"""Let DeepSpeed's `save_checkpoint` run into memory instead of files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from pipeline.engine.interface import Captured

_NOWHERE, _TAG = "nowhere", "state"
"""The directory that DeepSpeed is asked to save to; nothing is written there."""


class _CapturingEngine(CheckpointEngine):
    """Receives the state that DeepSpeed's own checkpoint engine would write to files."""

    def __init__(self, copy: Callable[[Any], Any], skipped: Collection[str]) -> None:
        """
        Args:
            skipped: names of the network's weights of which only type and shape are kept.
        """
        super().__init__()
        self._copy, self._skipped = copy, skipped
        self.captured = Captured()

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing needs preparing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories are made where the files are written."""

    def save(self, state_dict: Any, path: str) -> None:
        """Copy the contents of the file `path`."""
        try:
            if self._skipped and state_dict.get("module"):
                module = {
                    name: torch.empty_like(value, device="meta") if name in self._skipped else value
                    for name, value in state_dict["module"].items()
                }
                state_dict = state_dict | {"module": module}
            name = Path(path).relative_to(Path(_NOWHERE, _TAG)).as_posix()
            self.captured.files[name] = self._copy(state_dict)
        except Exception as error:
            self.captured.error = error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Only saves are captured."""
        raise NotImplementedError(path)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """The files are committed when all ranks have written theirs."""
        return True


def capture(engine: Any, copy: Callable[[Any], Any]) -> Captured:
    """As `Engine.capture`.

    Args:
        engine: a DeepSpeedEngine.
    """
    capturing = _CapturingEngine(copy, _weights_with_masters(engine))
    own = engine.checkpoint_engine
    engine.checkpoint_engine = capturing
    # A script that consolidates weights, which model.safetensors makes needless; it would be written at once.
    engine._copy_recovery_script = lambda save_path: None
    try:
        engine.save_checkpoint(_NOWHERE, tag=_TAG, save_latest=False)
    finally:
        engine.checkpoint_engine = own
        del engine._copy_recovery_script
    return capturing.captured


def _weights_with_masters(engine: Any) -> Collection[str]:
    """Weights that need not be saved: a restore reads them from the optimizer's float32 masters, and every other reader
    from the weights' own file. In stage 3 DeepSpeed itself leaves them out."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 3 or (stage == 0 and not hasattr(optimizer, "fp32_groups")):
        return ()
    return {name for name, one in engine.module.named_parameters(remove_duplicate=False) if one.requires_grad}
