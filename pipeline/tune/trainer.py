"""One training of one network on one task, with Accelerate: alone or among several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from pipeline.run.settings import ZeroConfig
from pipeline.tune.forms.base import EncodedPart, PaddedBatch, PreparedTask, unwrapped
from pipeline.tune.learner import Learner, PlainLearner
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.training_state import EpochReport, Kept, StateFile, TrainingState
from pipeline.tune.updates import Updater, plan_updates


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training."""

    outputs: np.ndarray
    """[evaluation rows, ...]: the form's outputs after the epoch that counts."""
    epochs: tuple[EpochReport, ...]
    kept: EpochReport
    """The epoch that counts; the network has its weights."""
    losses: tuple[float, ...]
    """Mean loss of every update, nats per prediction."""
    network: nn.Module
    """The trained network, with the weights of the epoch that counts."""
    test_outputs: np.ndarray | None
    """[test rows, ...], where the task has unlabelled examples."""


def _ignore(*_: object) -> None:
    """Told of nothing."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Reports of a training's progress, in every process."""

    on_update: Callable[[int, float], None] = field(default=_ignore)
    """(updates done, mean loss of the last one); of several processes, each estimates the loss from its own share."""
    on_epoch: Callable[[EpochReport], None] = field(default=_ignore)


def train(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    settings: TrainingConfig,
    seed: int,
    *,
    main_metric: str | None = None,
    callbacks: Callbacks = Callbacks(),
    state_file: StateFile | None = None,
    zero: ZeroConfig | None = None,
) -> Outcome:
    """Train `model` and evaluate it after every epoch. Called by all processes together.

    Args:
        model: the network that `task` builds, with its first weights; not to be used afterwards.
        main_metric: decides which epoch is best, where that matters.
        state_file: keeps the training's place on disk, so that a killed one goes on from there.
        zero: shards the training among the processes; None trains all weights in each.

    Raises:
        ConfigError: the batch cannot be shared by the processes.
        ClozeError: gradients became infinite or not a number.
        PreemptedError: the state file's stop was requested, and the state is saved.
    """
    plan = plan_updates(settings, len(task.train), seed, accelerator.num_processes)
    learner = make_learner(accelerator, model, settings, zero)
    state = state_file.restore(learner) if state_file else TrainingState()

    def pause() -> None:
        if state_file:
            state_file.stop_if_asked(state, learner)

    updater = Updater(accelerator, learner, task, settings, plan)
    loader = evaluation_loader(accelerator, task)
    with _own_randomness(accelerator):
        for epoch in range(len(state.epochs), settings.epochs):
            if _is_over(state, settings, main_metric):
                break
            learner.network.train()
            for number, batch in enumerate(plan.epoch_batches(epoch)):
                if number < len(state.losses):
                    continue
                pause()
                state.losses.append(updater.make(state.updates, batch))
                state.updates += 1
                callbacks.on_update(state.updates, state.losses[-1] * accelerator.num_processes)
                if state_file:
                    state_file.save_when_due(state, learner)
            is_scored = settings.scored == "every_epoch" or epoch == settings.epochs - 1
            network = learner.whole()
            outputs = evaluate(accelerator, network, task, loader, pause) if is_scored else None
            _close_epoch(accelerator, state, task.measure(outputs) if outputs is not None else {})
            if outputs is not None:
                _keep(state, outputs, network, settings, main_metric)
            callbacks.on_epoch(state.epochs[-1])
        kept = state.kept
        assert kept is not None, "the last epoch is always scored"
        network = learner.whole()
        if kept.weights is not None:
            unwrapped(network).load_state_dict(kept.weights)
        tested = None
        if task.test is not None:
            unlabelled = evaluation_loader(accelerator, task, task.test)
            tested = evaluate(accelerator, network, task, unlabelled, pause)
    learner.close()
    accelerator.free_memory(loader)
    epochs = tuple(state.epochs)
    return Outcome(
        kept.outputs, epochs, epochs[kept.epoch - 1], tuple(state.curve), unwrapped(network), tested
    )


def make_learner(
    accelerator: Accelerator, model: nn.Module, settings: TrainingConfig, zero: ZeroConfig | None
) -> Learner:
    """The network as the processes train it, sharded if `zero` is given."""
    if zero is None:
        return PlainLearner(accelerator, model, settings)
    # DeepSpeed takes seconds to import.
    from pipeline.tune.sharded import ShardedLearner

    return ShardedLearner(accelerator, model, settings, zero)


def _close_epoch(accelerator: Accelerator, state: TrainingState, metrics: dict[str, float]) -> None:
    # In float64 and summed over processes: every process gets the losses of all predictions.
    shares = torch.tensor(state.losses, dtype=torch.float64, device=accelerator.device)
    losses = torch.as_tensor(accelerator.reduce(shares))
    state.epochs.append(EpochReport(len(state.epochs) + 1, state.updates, float(losses.mean()), metrics))
    state.curve += losses.tolist()
    state.losses = []


def _keep(
    state: TrainingState,
    outputs: np.ndarray,
    model: nn.Module,
    settings: TrainingConfig,
    main_metric: str | None,
) -> None:
    """Note the epoch that has just ended as the one that counts, if it does."""
    epoch = state.epochs[-1].epoch
    if settings.keep == "last":
        state.kept = Kept(epoch, outputs, None)
    elif epoch == _best_epoch(state, main_metric):
        weights = {
            name: tensor.detach().cpu().clone() for name, tensor in unwrapped(model).state_dict().items()
        }
        state.kept = Kept(epoch, outputs, weights)


def _best_epoch(state: TrainingState, main_metric: str | None) -> int:
    """The first epoch with the highest main metric, from 1."""
    assert main_metric is not None, "which epoch is best is for a metric to say"
    return max(state.epochs, key=lambda report: report.metrics[main_metric]).epoch


def _is_over(state: TrainingState, settings: TrainingConfig, main_metric: str | None) -> bool:
    """Whether the last epochs brought nothing better, for as long as the settings allow."""
    if settings.patience is None or not state.epochs:
        return False
    return len(state.epochs) - _best_epoch(state, main_metric) >= settings.patience


@contextmanager
def _own_randomness(accelerator: Accelerator) -> Iterator[None]:
    """Restore torch's global generators afterwards: dropout draws from them."""
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    loader: DataLoader,
    between: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """[rows, ...]: the form's outputs for every evaluation row, in order.

    Called by all processes together; each computes a part, all return the whole.

    Args:
        between: called before every batch; what it raises, it raises in all processes.
    """
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


def evaluation_loader(
    accelerator: Accelerator, task: PreparedTask, part: EncodedPart | None = None
) -> DataLoader:
    """Batches of rows of similar length, longest first, with their numbers; of `task.evaluation` unless given."""
    rows_of = task.evaluation if part is None else part
    by_length = np.argsort(-rows_of.lengths, kind="stable")

    def collate(numbers: Sequence[int]) -> tuple[PaddedBatch, torch.Tensor]:
        rows = np.asarray(numbers)
        return task.batch(rows_of, rows), torch.from_numpy(rows)

    loader = DataLoader(by_length.tolist(), batch_size=task.evaluation_batch_size, collate_fn=collate)
    return cast(DataLoader, accelerator.prepare_data_loader(loader, device_placement=False))
