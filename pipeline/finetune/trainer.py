"""One training of one network on one task, with Accelerate: alone or among several processes.

An update divides the summed loss by the predictions of the *global* batch, and dropout is seeded by (seed,
update, micro-batch). So the number of processes changes nothing but the order of floating-point sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from cluster.artefacts.errors import ClozeError, ConfigError
from models.weights import decay_groups
from pipeline.finetune.batches import UpdatePlan
from pipeline.finetune.forms.base import PaddedBatch, PreparedTask
from pipeline.finetune.settings import TrainingConfig
from pipeline.samples.noise.noise import Noise

BETAS = (0.9, 0.98)
"""Decay rates of AdamW (Liu et al. 2019, section 3.1)."""
EPSILON = 1e-6
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Loss and metrics of an epoch."""

    epoch: int
    """From 1."""
    update: int
    """Updates done so far."""
    loss: float
    """Mean training loss of the epoch, nats per prediction."""
    metrics: dict[str, float]
    """On the evaluation examples; none after epochs that are not scored."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training."""

    outputs: np.ndarray
    """[evaluation rows, ...]: the form's outputs after the last epoch."""
    epochs: tuple[EpochReport, ...]


OnUpdate = Callable[[float], None]
"""Called after every update with its mean loss (of this process's predictions where there are several)."""
OnEpoch = Callable[[EpochReport], None]
"""Called after every epoch."""


def plan_updates(settings: TrainingConfig, num_examples: int, seed: int, num_processes: int) -> UpdatePlan:
    """The plan of a training.

    Raises:
        ConfigError: there are more processes than micro-batches in a batch, so some would be idle.
    """
    micro_batch_size = min(settings.micro_batch_size or settings.batch_size, settings.batch_size)
    if math.ceil(settings.batch_size / micro_batch_size) < num_processes:
        raise ConfigError(
            f"A batch of {settings.batch_size} in micro-batches of {micro_batch_size} cannot be shared by"
            f" {num_processes} processes.",
            next_step=f"set training.micro_batch_size={max(1, settings.batch_size // num_processes)}"
            f"{'' if settings.batch_size >= num_processes else f' and training.batch_size={num_processes}'}",
        )
    return UpdatePlan(num_examples, settings.epochs, settings.batch_size, micro_batch_size, seed)


def train(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    settings: TrainingConfig,
    seed: int,
    on_update: OnUpdate,
    on_epoch: OnEpoch,
) -> Outcome:
    """Train `model` in place and evaluate it after every epoch. Called by all processes together.

    Args:
        model: the network that `task` builds.

    Raises:
        ConfigError: the batch cannot be shared by the processes.
        ClozeError: gradients became infinite or not a number.
    """
    plan = plan_updates(settings, len(task.train), seed, accelerator.num_processes)
    prepared, optimizer = accelerator.prepare(model, make_optimizer(model, settings))
    loader = evaluation_loader(accelerator, task)
    reports: list[EpochReport] = []
    outputs = np.empty(0)
    with _own_randomness(accelerator):
        for epoch in range(settings.epochs):
            prepared.train()
            shares = [
                _update(accelerator, prepared, optimizer, task, plan, batch, update, settings, on_update)
                for update, batch in enumerate(plan.epoch_batches(epoch), epoch * plan.updates_per_epoch)
            ]
            metrics: dict[str, float] = {}
            if settings.scored == "every_epoch" or epoch == settings.epochs - 1:
                outputs = evaluate(accelerator, prepared, task, loader)
                metrics = task.measure(outputs)
            # In float64 and summed over processes: every process gets the mean loss of all predictions of the epoch.
            losses = accelerator.reduce(torch.tensor(shares, dtype=torch.float64, device=accelerator.device))
            loss = float(torch.as_tensor(losses).mean())
            reports.append(EpochReport(epoch + 1, len(shares) * (epoch + 1), loss, metrics))
            on_epoch(reports[-1])
    accelerator.free_memory(prepared, optimizer, loader)
    return Outcome(outputs, tuple(reports))


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) with decay on matrices only, as BERT's released code has it; frozen
    weights are left out."""
    groups = decay_groups(model, settings.weight_decay)
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, eps=EPSILON, fused=True)


def learning_rate(update: int, num_updates: int, settings: TrainingConfig) -> float:
    """Rate of update number `update` (from 0): linear rise over the warm-up, then linear fall towards zero.

    Neither the first nor the last update has rate zero, with which it would learn nothing.
    """
    warmup = round(settings.warmup_fraction * num_updates)
    if update < warmup:
        return settings.lr * (update + 1) / (warmup + 1)
    return settings.lr * (num_updates - update) / (num_updates - warmup)


def _update(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    task: PreparedTask,
    plan: UpdatePlan,
    batch: np.ndarray,
    update: int,
    settings: TrainingConfig,
    on_update: OnUpdate,
) -> float:
    """One optimizer step on the global batch; returns the share of its mean loss from this process."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(update, plan.num_updates, settings)
    pieces = plan.micro_batches(batch)
    rounds = math.ceil(len(pieces) / accelerator.num_processes)
    predictions = task.train.predictions
    total = int(predictions[batch].sum())
    loss_sum, count = 0.0, 0
    for turn in range(rounds):
        number = turn * accelerator.num_processes + accelerator.process_index
        # Gradients are exchanged in the last round, which every process must enter: a process without a micro-batch
        # left takes part with a repeated one of weight zero.
        weight = accelerator.num_processes / total if number < len(pieces) else 0.0
        rows = pieces[number % len(pieces)]
        padded = task.batch(task.train, rows).to(accelerator.device)
        last = turn == rounds - 1
        with nullcontext() if last else accelerator.no_sync(model):
            torch.manual_seed(Noise.of("finetune-dropout", plan.seed, update, number).seed())
            loss = task.loss(model, padded)
            accelerator.backward(loss * weight)
        if weight:
            loss_sum += float(loss.detach())
            count += int(predictions[rows].sum())
    _step(accelerator, model, optimizer, update)
    on_update(loss_sum / max(count, 1))
    return loss_sum / total


def _step(accelerator: Accelerator, model: nn.Module, optimizer: Any, update: int) -> None:
    norm = accelerator.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    # The norm is of the exchanged gradients, so all processes stop here together.
    if norm is not None and not math.isfinite(float(norm)):
        raise ClozeError(
            f"The gradients of update {update} are not finite.",
            kept="the trainings that were finished before",
            next_step="lower training.lr or raise training.warmup_fraction, and run the same command again",
        )
    optimizer.step()
    optimizer.zero_grad()


def evaluate(
    accelerator: Accelerator, model: nn.Module, task: PreparedTask, loader: DataLoader
) -> np.ndarray:
    """[rows, ...]: the form's outputs for every evaluation row, in order.

    Called by all processes together; each computes a part, all return the whole.
    """
    model.eval()
    rows: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    with torch.no_grad():
        for padded, numbers in loader:
            batch = cast(PaddedBatch, padded).to(accelerator.device)
            # Accelerate pads the last round with repeated rows; gathering drops them again.
            with accelerator.autocast():
                mine = (numbers.to(accelerator.device), task.outputs(model, batch))
            found = accelerator.gather_for_metrics(mine)
            rows.append(found[0].cpu())
            outputs.append(found[1].cpu())
    order = torch.cat(rows)
    assert order.sort().values.equal(torch.arange(len(order))), "each row must be gathered exactly once"
    return torch.cat(outputs)[order.argsort()].numpy()


def evaluation_loader(accelerator: Accelerator, task: PreparedTask) -> DataLoader:
    """Batches of evaluation rows of similar length, longest first, with their numbers."""
    by_length = np.argsort(-task.evaluation.lengths, kind="stable")

    def collate(numbers: Sequence[int]) -> tuple[PaddedBatch, torch.Tensor]:
        rows = np.asarray(numbers)
        return task.batch(task.evaluation, rows), torch.from_numpy(rows)

    loader = DataLoader(by_length.tolist(), batch_size=task.evaluation_batch_size, collate_fn=collate)
    return cast(DataLoader, accelerator.prepare_data_loader(loader, device_placement=False))


@contextmanager
def _own_randomness(accelerator: Accelerator) -> Iterator[None]:
    """Restore torch's global generators afterwards: dropout draws from them."""
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
