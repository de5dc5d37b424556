"""The place of a training between two updates, on disk: a killed training continues from there, bit for bit.

The files lie beside the finished trainings of the scores that are being made, and go when the training is finished. A
sealed JSON file says all but tensors, and names the safetensors file with weights, optimizer state and the best weights
so far; two such files take turns, so that it names a whole one at every moment. Order and dropout follow from the
numbers of update and micro-batch, so no generator state is needed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor

from cluster.artefacts.errors import CorruptArtefactError, PreemptedError, StorageError
from cluster.artefacts.manifest import FileEntry, replaced
from cluster.artefacts.seals import read_sealed, write_sealed
from cluster.artefacts.storage import difference, storage_errors
from cluster.stopping import StopFile
from models.weights import with_prefix, write_safetensors
from pipeline.tune.learner import Learner, on_first
from pipeline.tune.scores import EpochScore

LARGEST_SHARE = 0.05
"""Share of the time that saving may take: where a save takes long, saves become rarer."""


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
        """Begin, or continue what the files say of an earlier attempt at the same training.

        Args:
            path: of the JSON file; its directory is made with it.
            identity: hash of everything that determines the training; files of another one are not read.
            interval_s: least time between two saves; a training that is killed repeats about as much.
            request: a stop that any process may be asked for; None for trainings that run to their end.
        """
        self.path = path
        self._identity = identity
        self._interval_s = interval_s
        self._accelerator = accelerator
        self._request = request
        facts = on_first(accelerator, lambda: _whole(path, read_facts(path, identity)))
        self.tracked_run: str | None = facts.get("tracked_run")
        """The training's MLflow run; `restore` writes another one down."""
        self._run_in_file = self.tracked_run
        self._file: dict[str, Any] | None = facts.get("file")
        self._earlier_s: float = facts.get("seconds", 0.0)
        self.updates: int = facts.get("updates", 0)
        """Updates done."""
        losses = _numbers(facts.get("losses", []))
        # Sums over processes, which one of them takes part with from now on.
        self.losses: list[float] = losses if accelerator.is_main_process else [0.0] * len(losses)
        """This process's share of the mean loss of every update of the running epoch."""
        self.curve: list[float] = _numbers(facts.get("curve", []))
        """Mean loss of every update of the finished epochs, over all processes, in nats per prediction."""
        self.epochs = [EpochScore.model_validate(epoch) for epoch in facts.get("epochs", ())]
        self.kept_epoch: int = facts.get("kept_epoch", 0)
        """The epoch that counts so far, from 1; 0 before the first one that is scored."""
        self.outputs: np.ndarray | None = None
        """[evaluation rows, ...]: the form's outputs after the epoch that counts."""
        self.weights: dict[str, Tensor] | None = None
        """Copies of the network's tensors after it; None where later epochs always take its place."""
        self._scaler: Mapping[str, Any] | None = facts.get("scaler")
        self._began = self._saved_at = time.monotonic()
        self._saved_updates, self._save_s = self.updates, 0.0

    @property
    def seconds(self) -> float:
        """Time of the training, of all attempts together."""
        return self._earlier_s + time.monotonic() - self._began

    def restore(self, learner: Learner) -> None:
        """Fill a new learner from the files, where there are some.

        Afterwards the JSON file names the MLflow run, so that a training that is killed before its next save continues
        it.
        """
        if self._file is not None:
            tensors = load_file(self.path.with_name(self._file["path"]))
            learner.restore(tensors)
            if self._accelerator.scaler is not None and self._scaler is not None:
                self._accelerator.scaler.load_state_dict(dict(self._scaler))
            if self.kept_epoch:
                self.outputs = tensors["outputs"].numpy()
                self.weights = with_prefix(tensors, "kept.") or None
        if self.tracked_run != self._run_in_file and self._accelerator.is_main_process:
            self._write(self.losses)

    def pause(self, learner: Learner) -> None:
        """Save where it is time, and stop where one of the processes was asked to. All call it, between two updates and
        between two batches of an evaluation.

        Raises:
            PreemptedError: the training stops here.
        """
        wait = max(self._interval_s, self._save_s / LARGEST_SHARE)
        is_due = self.updates > self._saved_updates and time.monotonic() - self._saved_at >= wait
        found = [
            # The first process has the clock.
            int(is_due and self._accelerator.is_main_process),
            int(self._request is not None and self._request.requested()),
        ]
        flags = torch.tensor(found, device=self._accelerator.device)
        due, asked = torch.as_tensor(self._accelerator.reduce(flags)).tolist()
        if self.updates and (due or asked):
            self.save(learner)
        if asked:
            reason = self._request.reason if self._request else ""
            raise PreemptedError(
                f"{self.path.stem} stopped after update {self.updates}, as asked:"
                f" {reason or 'a signal to another process'}.",
                kept="the finished trainings and this one's updates; nothing has to be computed again",
                next_step="run the same command again",
            )

    def save(self, learner: Learner) -> None:
        """Write the files now; those before stay until the new ones are complete."""
        began = time.monotonic()
        losses = self.losses_of_all() if self.losses else []
        tensors = learner.tensors()
        if self._accelerator.is_main_process:
            if self.outputs is not None:
                tensors["outputs"] = torch.from_numpy(np.ascontiguousarray(self.outputs))
            tensors |= {f"kept.{name}": tensor for name, tensor in (self.weights or {}).items()}
            one, other = self._turns()
            if self._file is not None and self._file["path"] == one.name:
                one, other = other, one
            with storage_errors(one):
                one.parent.mkdir(parents=True, exist_ok=True)
                write_tensors(one, tensors)
                self._file = dataclasses.asdict(FileEntry.of(one, one.name))
                self._write(losses)
                other.unlink(missing_ok=True)
        self._saved_updates, self._saved_at = self.updates, time.monotonic()
        self._save_s = self._saved_at - began

    def losses_of_all(self) -> list[float]:
        """`losses`, summed over processes in float64: every process gets the losses of all predictions."""
        shares = torch.tensor(self.losses, dtype=torch.float64, device=self._accelerator.device)
        return torch.as_tensor(self._accelerator.reduce(shares)).tolist()

    def remove(self) -> None:
        """Delete the files, where there are some."""
        if self._accelerator.is_main_process:
            for file in (self.path, *self._turns()):
                file.unlink(missing_ok=True)

    def _turns(self) -> tuple[Path, Path]:
        return self.path.with_suffix(".a.safetensors"), self.path.with_suffix(".b.safetensors")

    def _write(self, losses: list[float]) -> None:
        scaler = self._accelerator.scaler
        facts = {
            "identity": self._identity,
            "tracked_run": self.tracked_run,
            "file": self._file,
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
            write_sealed(self.path, facts, signed=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in one step: a killed run must not leave half a file."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replaced(path) as temporary:
        write_safetensors(temporary, stored, metadata)


def read_facts(path: Path, identity: str) -> dict[str, Any]:
    """What the JSON file of a training says; empty where there is none that fits or can be read."""
    try:
        facts = read_sealed(path, signed=True)
        return facts if facts["identity"] == identity else {}
    except (OSError, StorageError, KeyError, ValueError):
        return {}


def _whole(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their tensors. Tensors that cannot be read cost the updates before them, and nothing else."""
    try:
        entry = FileEntry(**facts["file"])
        if not difference(entry.under(path.parent), entry):
            return facts
    # There are no tensors before the first save.
    except (OSError, StorageError, KeyError, TypeError, ValueError, CorruptArtefactError):
        pass
    return {name: facts[name] for name in ("tracked_run", "seconds") if name in facts}


def _numbers(values: list[float | None]) -> list[float]:
    """JSON has no NaN."""
    return [math.nan if value is None else value for value in values]
