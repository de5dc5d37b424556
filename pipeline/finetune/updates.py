"""One update of a training: learning rate, gradients of the global batch, clipping, AdamW.

An update divides the summed loss by the predictions of the *global* batch, and dropout is seeded by (seed, update,
micro-batch). So the number of processes changes nothing but the order of floating-point sums.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from cluster.artefacts.errors import ClozeError, ConfigError
from models.weights import decay_groups
from pipeline.finetune.batches import UpdatePlan
from pipeline.finetune.forms.base import PreparedTask
from pipeline.finetune.settings import TrainingConfig
from pipeline.samples.noise.noise import Noise

BETAS = (0.9, 0.98)
"""Decay rates of AdamW (Liu et al. 2019, section 3.1)."""
EPSILON = 1e-6
MAX_GRADIENT_NORM = 1.0


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


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) with decay on matrices only, as BERT's released code has it; frozen
    weights are left out."""
    groups = decay_groups(model, settings.weight_decay, settings.layer_decay)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, eps=EPSILON, fused=True)


def learning_rate(update: int, num_updates: int, settings: TrainingConfig) -> float:
    """Rate of update number `update` (from 0): linear rise over the warm-up, then linear fall towards zero.

    Neither the first nor the last update has rate zero, with which it would learn nothing.
    """
    warmup = round(settings.warmup_fraction * num_updates)
    if update < warmup:
        return settings.lr * (update + 1) / (warmup + 1)
    return settings.lr * (num_updates - update) / (num_updates - warmup)


class Updater:
    """Makes the updates of one training, in all processes together."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        task: PreparedTask,
        settings: TrainingConfig,
        plan: UpdatePlan,
    ) -> None:
        """
        Args:
            model, optimizer: as `accelerator.prepare` gives them.
        """
        self._accelerator = accelerator
        self._model = model
        self._optimizer = optimizer
        self._task = task
        self._settings = settings
        self._plan = plan

    def make(self, update: int, batch: np.ndarray) -> float:
        """One optimizer step.

        Args:
            update: its number, from 0.
            batch: int64 [examples]: the examples of the global batch.

        Returns:
            The share of the batch's mean loss from this process; the shares of all processes add up to it.

        Raises:
            ClozeError: gradients became infinite or not a number.
        """
        accelerator = self._accelerator
        for group in self._optimizer.param_groups:
            rate = learning_rate(update, self._plan.num_updates, self._settings)
            group["lr"] = rate * group["lr_scale"]
        pieces = self._plan.micro_batches(batch)
        rounds = math.ceil(len(pieces) / accelerator.num_processes)
        total = int(self._task.train.predictions[batch].sum())
        loss_sum = 0.0
        for turn in range(rounds):
            number = turn * accelerator.num_processes + accelerator.process_index
            # Gradients are exchanged in the last round, which every process must enter: a process without a
            # micro-batch left takes part with a repeated one of weight zero.
            weight = accelerator.num_processes / total if number < len(pieces) else 0.0
            rows = pieces[number % len(pieces)]
            padded = self._task.batch(self._task.train, rows).to(accelerator.device)
            with nullcontext() if turn == rounds - 1 else accelerator.no_sync(self._model):
                torch.manual_seed(Noise.of("finetune-dropout", self._plan.seed, update, number).seed())
                loss = self._task.loss(self._model, padded)
                accelerator.backward(loss * weight)
            if weight:
                loss_sum += float(loss.detach())
        self._step(update)
        return loss_sum / total

    def _step(self, update: int) -> None:
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), MAX_GRADIENT_NORM)
        scaled = self._accelerator.scaler is not None
        # The norm is of the exchanged gradients, so all processes stop here together. A scaler of fp16 skips the
        # update by itself, and lowers its scale.
        if norm is not None and not scaled and not math.isfinite(float(norm)):
            raise ClozeError(
                f"The gradients of update {update} are not finite.",
                kept="the trainings that were finished before",
                next_step="lower training.lr or raise training.warmup_fraction, and run the same command again",
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
