"""One update of a training: learning rate, and the gradients of the global batch.

An update divides the summed loss by the predictions of the *global* batch, and dropout is seeded by (seed, update,
micro-batch). So the number of processes changes nothing but the order of floating-point sums.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from accelerate import Accelerator

from cluster.artefacts.errors import ClozeError, ConfigError
from pipeline.samples.noise import Noise
from pipeline.tune.batches import UpdatePlan
from pipeline.tune.forms.base import PreparedTask
from pipeline.tune.learner import Learner
from pipeline.tune.settings import TrainingConfig


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
        learner: Learner,
        task: PreparedTask,
        settings: TrainingConfig,
        plan: UpdatePlan,
    ) -> None:
        self._accelerator = accelerator
        self._learner = learner
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
            with self._learner.micro_batch(last=turn == rounds - 1):
                torch.manual_seed(Noise.of("finetune-dropout", self._plan.seed, update, number).seed())
                loss = self._task.loss(self._learner.network, padded)
                self._learner.backward(loss * weight)
            if weight:
                loss_sum += float(loss.detach())
        self._step(update)
        return loss_sum / total

    def _step(self, update: int) -> None:
        norm = self._learner.update(learning_rate(update, self._plan.num_updates, self._settings))
        # The norm is of the exchanged gradients, so all processes stop here together.
        if norm is not None and not math.isfinite(norm):
            raise ClozeError(
                f"The gradients of update {update} are not finite.",
                kept="the trainings that were finished before",
                next_step="lower training.lr or raise training.warmup_fraction, and run the same command again",
            )
