"""The updates of a training: which examples each one learns from, its learning rate, and the gradients of its batch.

The order of examples is a pure function of (seed, epoch). A global batch is cut into a fixed list of micro-batches,
which are distributed over the processes. An update divides the summed loss by the predictions of the *global* batch,
and dropout is seeded by (seed, update, micro-batch). So the number of processes changes nothing but the order of
floating-point sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cluster.artefacts.errors import ClozeError, ConfigError
from pipeline.samples.noise import Noise
from pipeline.tasks.settings import TrainingConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

    from pipeline.tune.forms.base import PreparedTask
    from pipeline.tune.learner import Learner


def example_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """int64 [num_examples]: the indices of the examples of an epoch, shuffled."""
    return Noise.of("finetune-order", seed, epoch).permutation(num_examples)


def sample_examples(num_examples: int, limit: int | None) -> np.ndarray:
    """int64: the indices of the used examples, ascending: all, or a fixed random sample of `limit`."""
    if limit is None or limit >= num_examples:
        return np.arange(num_examples)
    return np.sort(Noise.of("finetune-sample").permutation(num_examples)[:limit])


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The cut of examples into updates, and of updates into micro-batches."""

    num_examples: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    seed: int

    @property
    def updates_per_epoch(self) -> int:
        """The last update of an epoch may have fewer examples."""
        return math.ceil(self.num_examples / self.batch_size)

    @property
    def num_updates(self) -> int:
        """Updates of the whole training."""
        return self.epochs * self.updates_per_epoch

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """The examples of each update of an epoch, int64 arrays; together every example once."""
        order = example_order(self.seed, epoch, self.num_examples)
        return [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]

    def micro_batches(self, batch: np.ndarray) -> list[np.ndarray]:
        """A batch cut into micro-batches of at most `micro_batch_size` examples."""
        return [
            batch[first : first + self.micro_batch_size]
            for first in range(0, len(batch), self.micro_batch_size)
        ]


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

    Neither the first nor the last update has rate zero, because it would learn nothing.
    """
    warmup = round(settings.warmup_fraction * num_updates)
    if update < warmup:
        return settings.lr * (update + 1) / (warmup + 1)
    return settings.lr * (num_updates - update) / (num_updates - warmup)


def make_update(
    accelerator: Accelerator,
    learner: Learner,
    task: PreparedTask,
    settings: TrainingConfig,
    plan: UpdatePlan,
    update: int,
    batch: np.ndarray,
) -> float:
    """Make update number `update` (from 0), in all processes together.

    Args:
        batch: int64 [examples]: the examples of the global batch.

    Returns:
        The share of the batch's mean loss from this process; the shares of all processes add up to it.

    Raises:
        ClozeError: gradients became infinite or not a number.
    """
    import torch

    pieces = plan.micro_batches(batch)
    rounds = math.ceil(len(pieces) / accelerator.num_processes)
    total = int(task.train.predictions[batch].sum())
    loss_sum = 0.0
    for turn in range(rounds):
        number = turn * accelerator.num_processes + accelerator.process_index
        # Gradients are exchanged in the last round, which every process must enter: a process without a
        # micro-batch left takes part with a repeated one of weight zero.
        weight = accelerator.num_processes / total if number < len(pieces) else 0.0
        padded = task.batch(task.train, pieces[number % len(pieces)]).to(accelerator.device)
        with learner.micro_batch(last=turn == rounds - 1):
            torch.manual_seed(Noise.of("finetune-dropout", plan.seed, update, number).seed())
            loss = task.loss(learner.network, padded)
            learner.backward(loss * weight)
        if weight:
            loss_sum += float(loss.detach())
    norm = learner.update(learning_rate(update, plan.num_updates, settings))
    # The norm is of the exchanged gradients, so all processes stop here together.
    if norm is not None and not math.isfinite(norm):
        raise ClozeError(
            f"The gradients of update {update} are not finite.",
            kept="the trainings that were finished before",
            next_step="lower training.lr or raise training.warmup_fraction, and run the same command again",
        )
    return loss_sum / total
