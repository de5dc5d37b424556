"""The place of a training between two updates, and its file: a killed training continues from there, bit for bit.

The file lies beside the finished trainings of the scores that are being made, and goes when the training is finished.
It is one safetensors file: weights, optimizer state and the best weights so far as tensors, everything else as JSON in
the header. Order and dropout follow from the numbers of update and micro-batch, so no generator state is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import has_seal, seal_of, write_seal
from cluster.artefacts.storage import storage_errors
from cluster.stopping import StopFile
from models.weights import with_prefix
from pipeline.tune.learner import Learner, on_first
from pipeline.tune.scores import EpochScore

LARGEST_SHARE = 0.05
"""Share of the time that saving may take: where a save takes long, saves become rarer."""
FIRST_UPDATES = 10
"""Updates before the first one that may be followed by a save; their time decides when that is due."""
_FACTS = "training"
"""Key of the JSON in the header. Files of other fields had another one, and are not read."""


class TrainingState:
    """Everything of a training but weights and optimizer; saved and restored with them, in all processes together."""

    def __init__(
        self,
        path: Path,
        identity: str,
        accelerator: Accelerator,
        interval_s: float,
        request: StopFile | None = None,
    ) -> None:
        """Begin, or continue what the file says of an earlier attempt at the same training.

        Args:
            path: of the file; its directory is made with it.
            identity: hash of everything that determines the training; a file of another one is not read.
            interval_s: least time between two saves; a training that is killed repeats about as much.
            request: a stop that any process may be asked for; None for trainings that run to their end.
        """
        self.path = path
        self._identity = identity
        self._interval_s = interval_s
        self._accelerator = accelerator
        self._request = request
        facts = on_first(accelerator, lambda: read_facts(path, identity)) or {}
        self.tracked_run: str | None = facts.get("tracked_run")
        """The training's MLflow run; `restore` writes another one down."""
        self._run_in_file = self.tracked_run
        self._earlier_s: float = facts.get("seconds", 0.0)
        self.updates: int = facts.get("updates", 0)
        """Updates done."""
        losses = facts.get("losses", [])
        # Sums over processes, which one of them takes part with from now on.
        self.losses: list[float] = losses if accelerator.is_main_process else [0.0] * len(losses)
        """This process's share of the mean loss of every update of the running epoch."""
        self.curve: list[float] = facts.get("curve", [])
        """Mean loss of every update of the finished epochs, over all processes, in nats per prediction."""
        self.epochs = [EpochScore.model_validate(epoch) for epoch in facts.get("epochs", ())]
        self.kept_epoch: int = facts.get("kept_epoch", 0)
        """The epoch that counts so far, from 1; 0 before the first one that is scored."""
        self.outputs: np.ndarray | None = None
        """[evaluation rows, ...]: the form's outputs after the epoch that counts."""
        self.weights: dict[str, Tensor] | None = None
        """Copies of the network's tensors after it; None where later epochs always take its place."""
        self._scaler: Mapping[str, Any] | None = facts.get("scaler")
        self._began = time.monotonic()
        self._measure()
        self._next = self.updates + FIRST_UPDATES

    @property
    def seconds(self) -> float:
        """Time of the training, of all attempts together."""
        return self._earlier_s + time.monotonic() - self._began

    def restore(self, learner: Learner) -> None:
        """Fill a new learner from the file, where there is one.

        Afterwards the file names the MLflow run, so that a training that is killed before its next save continues it.
        """
        tensors: dict[str, Tensor] = {}
        if self.updates:
            with safe_open(str(self.path), "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
            learner.restore(tensors)
            if self._accelerator.scaler is not None and self._scaler is not None:
                self._accelerator.scaler.load_state_dict(dict(self._scaler))
            if self.kept_epoch:
                self.outputs = tensors["outputs"].numpy()
                self.weights = with_prefix(tensors, "kept.") or None
        if self.tracked_run != self._run_in_file and self._accelerator.is_main_process:
            self._write(tensors, self.losses)
        self._measure()

    def save_when_due(self, learner: Learner) -> None:
        """Save after the updates that the first process chose from the time that they take; others only note it."""
        if self.updates < self._next:
            return
        elapsed = time.monotonic() - self._measured_at
        due = on_first(self._accelerator, lambda: elapsed >= self._interval_s)
        cost = 0.0
        if due:
            before = time.monotonic()
            self.save(learner)
            cost = time.monotonic() - before
        # Updates until the next look at the clock.
        seconds = elapsed / max(self.updates - self._measured_from, 1)
        wanted = max(self._interval_s, cost / LARGEST_SHARE) - (0.0 if cost else elapsed)
        wait = max(1, round(wanted / max(seconds, 1e-6)))
        self._next = on_first(self._accelerator, lambda: self.updates + wait)
        if due:
            self._measure()

    def stop_if_asked(self, learner: Learner) -> None:
        """Save and stop where one of the processes was asked to. All call it, between two updates.

        Raises:
            PreemptedError: the training stops here.
        """
        if self._request is None:
            return
        asked = torch.tensor(int(self._request.requested()), device=self._accelerator.device)
        if not int(torch.as_tensor(self._accelerator.reduce(asked))):
            return
        if self.updates:
            self.save(learner)
        raise PreemptedError(
            f"{self.path.stem} stopped after update {self.updates}, as asked:"
            f" {self._request.reason or 'a signal to another process'}.",
            kept="the finished trainings and this one's updates; nothing has to be computed again",
            next_step="run the same command again",
        )

    def save(self, learner: Learner) -> None:
        """Write the file now; the one before stays until the new one is complete."""
        losses = self.losses_of_all() if self.losses else []
        tensors = learner.tensors()
        if not self._accelerator.is_main_process:
            return
        if self.outputs is not None:
            tensors["outputs"] = torch.from_numpy(np.ascontiguousarray(self.outputs))
        tensors |= {f"kept.{name}": tensor for name, tensor in (self.weights or {}).items()}
        self._write(tensors, losses)

    def losses_of_all(self) -> list[float]:
        """`losses`, summed over processes in float64: every process gets the losses of all predictions."""
        shares = torch.tensor(self.losses, dtype=torch.float64, device=self._accelerator.device)
        return torch.as_tensor(self._accelerator.reduce(shares)).tolist()

    def remove(self) -> None:
        """Delete the file, where there is one."""
        if self._accelerator.is_main_process:
            self.path.unlink(missing_ok=True)
            seal_of(self.path).unlink(missing_ok=True)

    def _measure(self) -> None:
        """Measure the time of updates from here on."""
        self._measured_at, self._measured_from = time.monotonic(), self.updates

    def _write(self, tensors: Mapping[str, Tensor], losses: list[float]) -> None:
        scaler = self._accelerator.scaler
        facts = {
            "identity": self._identity,
            "tracked_run": self.tracked_run,
            "seconds": self.seconds,
            "updates": self.updates,
            "losses": losses,
            "curve": self.curve,
            "epochs": [epoch.model_dump() for epoch in self.epochs],
            "kept_epoch": self.kept_epoch,
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(self.path, tensors, {_FACTS: orjson.dumps(facts).decode()})
            write_seal(self.path)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, under a temporary name first: a killed run must not leave half a file."""
    temporary = path.with_name(f".{path.name}.tmp")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, str(temporary), metadata)
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(temporary, path)


def read_facts(path: Path, identity: str) -> dict[str, Any] | None:
    """What the file of a training says beside its tensors; None where there is none that fits or can be read."""
    try:
        with safe_open(str(path), "pt") as file:
            facts = orjson.loads(file.metadata()[_FACTS])
            return facts if has_seal(path) and facts["identity"] == identity else None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        # A file that cannot be read costs the updates before it, and nothing else.
        return None
