"""The place of a training between two updates, and its file: a killed training continues from there, bit for bit.

The file lies beside the finished trainings of the scores that are being made, and goes when the training is finished.
It is one safetensors file: weights, optimizer state and the best weights so far as tensors, everything else as JSON in
the header. Order and dropout follow from the numbers of update and micro-batch, so no generator state is needed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

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
from pipeline.tune.learner import Learner
from pipeline.tune.processes import on_first
from pipeline.tune.scores import EpochScore

LARGEST_SHARE = 0.05
"""Share of the time that saving may take: where a save takes long, saves become rarer."""
FIRST_UPDATES = 10
"""Updates before the first one that may be followed by a save; their time decides when that is due."""


@dataclass(slots=True)
class Kept:
    """The epoch that counts so far."""

    epoch: int
    """From 1."""
    outputs: np.ndarray
    """[evaluation rows, ...]: the form's outputs after it."""
    weights: dict[str, Tensor] | None
    """Copies of the network's tensors; None where later epochs always take its place."""


@dataclass(slots=True)
class TrainingState:
    """Everything but weights and optimizer."""

    updates: int = 0
    """Updates done."""
    losses: list[float] = field(default_factory=list)
    """This process's share of the mean loss of every update of the running epoch."""
    curve: list[float] = field(default_factory=list)
    """Mean loss of every update of the finished epochs, over all processes."""
    epochs: list[EpochScore] = field(default_factory=list)
    kept: Kept | None = None


class StateFile:
    """Saves and restores the state of one training, in all processes together."""

    def __init__(
        self,
        path: Path,
        identity: str,
        accelerator: Accelerator,
        interval_s: float,
        request: StopFile | None = None,
    ) -> None:
        """
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
        self._started = time.monotonic()
        self._next = 0
        self._measured_from = 0

    def restore(self, learner: Learner) -> TrainingState:
        """Fill a new learner from the file; a new state where there is none that fits or can be read."""
        state = TrainingState()
        if on_first(self._accelerator, self._fits):
            with safe_open(str(self.path), "pt") as file:
                facts = orjson.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
            learner.restore(tensors)
            if self._accelerator.scaler is not None and facts["scaler"] is not None:
                self._accelerator.scaler.load_state_dict(facts["scaler"])
            losses, kept = facts["losses"], facts["kept"]
            state = TrainingState(
                updates=facts["updates"],
                # Sums over processes, which one of them takes part with from now on.
                losses=losses if self._accelerator.is_main_process else [0.0] * len(losses),
                curve=facts["curve"],
                epochs=[EpochScore.model_validate(epoch) for epoch in facts["epochs"]],
                kept=kept
                and Kept(
                    kept["epoch"],
                    tensors["outputs"].numpy(),
                    with_prefix(tensors, "kept.") if kept["has_weights"] else None,
                ),
            )
        self._started = time.monotonic()
        self._measured_from = state.updates
        self._next = state.updates + FIRST_UPDATES
        return state

    def save_when_due(self, state: TrainingState, learner: Learner) -> None:
        """Save after the updates that the first process chose from the time that they take; others only note it."""
        if state.updates < self._next:
            return
        elapsed = time.monotonic() - self._started
        due = on_first(self._accelerator, lambda: elapsed >= self._interval_s)
        cost = 0.0
        if due:
            before = time.monotonic()
            self.save(state, learner)
            cost = time.monotonic() - before
        # Updates until the next look at the clock.
        seconds = elapsed / max(state.updates - self._measured_from, 1)
        wanted = max(self._interval_s, cost / LARGEST_SHARE) - (0.0 if cost else elapsed)
        wait = max(1, round(wanted / max(seconds, 1e-6)))
        self._next = on_first(self._accelerator, lambda: state.updates + wait)
        if due:
            self._started, self._measured_from = time.monotonic(), state.updates

    def stop_if_asked(self, state: TrainingState, learner: Learner) -> None:
        """Save and stop where one of the processes was asked to. All call it, between two updates.

        Raises:
            PreemptedError: the training stops here.
        """
        if self._request is None:
            return
        asked = torch.tensor(int(self._request.requested()), device=self._accelerator.device)
        if not int(torch.as_tensor(self._accelerator.reduce(asked))):
            return
        if state.updates:
            self.save(state, learner)
        raise PreemptedError(
            f"{self.path.stem} stopped after update {state.updates}, as asked:"
            f" {self._request.reason or 'a signal to another process'}.",
            kept="the finished trainings and this one's updates; nothing has to be computed again",
            next_step="run the same command again",
        )

    def save(self, state: TrainingState, learner: Learner) -> None:
        """Write the file now; the one before stays until the new one is complete."""
        shares = torch.tensor(state.losses, dtype=torch.float64, device=self._accelerator.device)
        losses = torch.as_tensor(self._accelerator.reduce(shares)).tolist() if state.losses else []
        tensors = learner.tensors()
        if not self._accelerator.is_main_process:
            return
        kept = None
        if state.kept is not None:
            tensors["outputs"] = torch.from_numpy(np.ascontiguousarray(state.kept.outputs))
            tensors |= {f"kept.{name}": tensor for name, tensor in (state.kept.weights or {}).items()}
            kept = {"epoch": state.kept.epoch, "has_weights": state.kept.weights is not None}
        scaler = self._accelerator.scaler
        facts = {
            "identity": self._identity,
            "updates": state.updates,
            "losses": losses,
            "curve": state.curve,
            "epochs": [epoch.model_dump() for epoch in state.epochs],
            "kept": kept,
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(stored, str(temporary), {"state": orjson.dumps(facts).decode()})
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, self.path)
            write_seal(self.path)

    def remove(self) -> None:
        """Delete the file, where there is one."""
        if self._accelerator.is_main_process:
            self.path.unlink(missing_ok=True)
            seal_of(self.path).unlink(missing_ok=True)

    def _fits(self) -> bool:
        try:
            with safe_open(str(self.path), "pt") as file:
                return (
                    has_seal(self.path)
                    and orjson.loads(file.metadata()["state"])["identity"] == self._identity
                )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            # A file that cannot be read costs the updates before it, and nothing else.
            return False
