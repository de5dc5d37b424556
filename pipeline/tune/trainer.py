"""One training of one network on one task, with Accelerate: alone or among several processes.

The order of examples is a pure function of (seed, epoch). A global batch is cut into a fixed list of micro-batches,
which are distributed over the processes. An update divides the summed loss by the predictions of the *global* batch,
and dropout is seeded by (seed, update, micro-batch). So the number of processes changes nothing but the order of
floating-point sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from cluster.artefacts.errors import ClozeError, ConfigError
from pipeline.run.shared_settings import ZeroConfig
from pipeline.samples.noise import Noise
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune.encoding import EncodedRows
from pipeline.tune.forms.base import PaddedBatch, PreparedTask, unwrapped
from pipeline.tune.learner import Learner, PlainLearner, ShardedLearner
from pipeline.tune.scores import EpochScore
from pipeline.tune.training_state import TrainingState
from pipeline.tune.trials import example_order


def train(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    settings: TrainingConfig,
    seed: int,
    state: TrainingState,
    *,
    on_update: Callable[[int, float], object],
    on_epoch: Callable[[EpochScore], object] = lambda epoch: None,
    zero: ZeroConfig | None = None,
) -> tuple[nn.Module, np.ndarray | None]:
    """Train `model` and evaluate it after every epoch. Called by all processes together.

    Args:
        model: the network that `task` builds, with its first weights; not to be used afterwards.
        state: counts updates and holds scores, outputs and losses, afterwards those of the whole training; a killed
            training continues from its file.
        on_update: takes the updates done and the mean loss of the last one, in every process; of several processes,
            each estimates the loss from its own share.
        on_epoch: takes an epoch's loss and metrics, in every process.
        zero: shards the training among the processes; None trains all weights in each.

    Returns:
        The trained network, with the weights of the epoch that counts, and [test rows, ...] outputs, where the task has
        unlabelled examples.

    Raises:
        ConfigError: the batch cannot be shared by the processes.
        ClozeError: gradients became infinite or not a number.
        PreemptedError: the state's stop was requested, and it is saved.
    """
    plan = plan_updates(settings, len(task.train), seed, accelerator.num_processes)
    learner = (
        PlainLearner(accelerator, model, settings)
        if zero is None
        else ShardedLearner(accelerator, model, settings, zero)
    )
    state.restore(learner)
    pause = partial(state.pause, learner)
    # It decides which epoch is best, where that matters.
    main_metric = task.config.metrics[0]
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    # Dropout draws from torch's global generators, which are restored afterwards.
    with torch.random.fork_rng(devices=devices):
        for epoch in range(len(state.epochs), settings.epochs):
            # Nothing better came for as long as the settings allow.
            best = _best_epoch(state, main_metric) if settings.patience and state.epochs else epoch
            if settings.patience and epoch - best >= settings.patience:
                break
            learner.network.train()
            for number, batch in enumerate(plan.epoch_batches(epoch)):
                if number < len(state.losses):
                    continue
                pause()
                loss = make_update(accelerator, learner, task, plan, state.updates, batch)
                state.losses.append(loss)
                state.updates += 1
                on_update(state.updates, loss * accelerator.num_processes)
            is_scored = settings.scored == "every_epoch" or epoch == settings.epochs - 1
            network = learner.whole()
            outputs = evaluate(accelerator, network, task, task.evaluation, pause) if is_scored else None
            losses, state.losses = state.losses_of_all(), []
            state.curve += losses
            metrics = {} if outputs is None else task.measure(outputs)
            mean = float(torch.tensor(losses, dtype=torch.float64).mean())
            state.epochs.append(EpochScore(update=state.updates, loss=mean, metrics=metrics))
            if outputs is not None and (
                settings.keep == "last" or _best_epoch(state, main_metric) == epoch + 1
            ):
                state.kept_epoch, state.outputs = epoch + 1, outputs
                if settings.keep == "best":
                    tensors = unwrapped(network).state_dict()
                    state.weights = {name: one.detach().cpu().clone() for name, one in tensors.items()}
            on_epoch(state.epochs[-1])
        assert state.kept_epoch, "the last epoch is always scored"
        network = learner.whole()
        if state.weights is not None:
            unwrapped(network).load_state_dict(state.weights)
        tested = None
        if task.test is not None:
            tested = evaluate(accelerator, network, task, task.test, pause)
    learner.close()
    accelerator.free_memory()
    return unwrapped(network), tested


def _best_epoch(state: TrainingState, main_metric: str) -> int:
    """The first epoch with the highest main metric, from 1."""
    values = [epoch.metrics[main_metric] for epoch in state.epochs]
    return values.index(max(values)) + 1


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    part: EncodedRows,
    between: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """[rows, ...]: the form's outputs for every row of a part of the task, in order.

    Called by all processes together; each computes some batches, of rows of similar length, and all return the whole.

    Args:
        part: `task.evaluation` or `task.test`.
        between: called before every batch; what it raises, it raises in all processes.
    """

    def collate(numbers: Sequence[int]) -> tuple[PaddedBatch, torch.Tensor]:
        chosen = np.asarray(numbers)
        return task.batch(part, chosen), torch.from_numpy(chosen)

    # The longest rows come first, which need most memory.
    by_length = np.argsort(-part.lengths, kind="stable").tolist()
    batches = DataLoader(by_length, batch_size=task.evaluation_batch_size, collate_fn=collate)
    loader = cast(DataLoader, accelerator.prepare_data_loader(batches, device_placement=False))
    model.eval()
    rows: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    with torch.no_grad():
        for padded, numbers in loader:
            between()
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


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The cut of examples into updates, and of updates into micro-batches, with the learning rate of each update."""

    settings: TrainingConfig
    num_examples: int
    micro_batch_size: int
    seed: int

    @property
    def num_updates(self) -> int:
        """Updates of the whole training; the last one of an epoch may have fewer examples."""
        return self.settings.epochs * math.ceil(self.num_examples / self.settings.batch_size)

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """The examples of each update of an epoch, int64 arrays; together every example once."""
        order, size = example_order(self.seed, epoch, self.num_examples), self.settings.batch_size
        return [order[first : first + size] for first in range(0, len(order), size)]

    def micro_batches(self, batch: np.ndarray) -> list[np.ndarray]:
        """A batch cut into micro-batches of at most `micro_batch_size` examples."""
        size = self.micro_batch_size
        return [batch[first : first + size] for first in range(0, len(batch), size)]

    def learning_rate(self, update: int) -> float:
        """Rate of update number `update` (from 0): linear rise over the warm-up, then linear fall towards zero.

        Neither the first nor the last update has rate zero, because it would learn nothing.
        """
        warmup = round(self.settings.warmup_fraction * self.num_updates)
        if update < warmup:
            return self.settings.lr * (update + 1) / (warmup + 1)
        return self.settings.lr * (self.num_updates - update) / (self.num_updates - warmup)


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
    return UpdatePlan(settings, num_examples, micro_batch_size, seed)


def make_update(
    accelerator: Accelerator,
    learner: Learner,
    task: PreparedTask,
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
    norm = learner.update(plan.learning_rate(update))
    # The norm is of the exchanged gradients, so all processes stop here together.
    if norm is not None and not math.isfinite(norm):
        raise ClozeError(
            f"The gradients of update {update} are not finite.",
            kept="the trainings that were finished before",
            next_step="lower training.lr or raise training.warmup_fraction, and run the same command again",
        )
    return loss_sum / total
