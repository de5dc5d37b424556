"""One training of one network on one task, with Accelerate: alone or among several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from pipeline.run.settings import ZeroConfig
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune.encoding import EncodedRows
from pipeline.tune.forms.base import PaddedBatch, PreparedTask, unwrapped
from pipeline.tune.learner import make_learner
from pipeline.tune.scores import EpochScore
from pipeline.tune.training_state import Kept, StateFile, TrainingState
from pipeline.tune.updates import make_update, plan_updates


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training."""

    outputs: np.ndarray
    """[evaluation rows, ...]: the form's outputs after the epoch that counts."""
    epochs: tuple[EpochScore, ...]
    kept_epoch: int
    """The epoch that counts, from 1; the network has its weights."""
    losses: tuple[float, ...]
    """Mean loss of every update, nats per prediction."""
    network: nn.Module
    """The trained network, with the weights of the epoch that counts."""
    test_outputs: np.ndarray | None
    """[test rows, ...], where the task has unlabelled examples."""


def train(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    settings: TrainingConfig,
    seed: int,
    state_file: StateFile,
    *,
    main_metric: str,
    on_update: Callable[[int, float], object],
    on_epoch: Callable[[EpochScore], object] = lambda epoch: None,
    zero: ZeroConfig | None = None,
) -> Outcome:
    """Train `model` and evaluate it after every epoch. Called by all processes together.

    Args:
        model: the network that `task` builds, with its first weights; not to be used afterwards.
        state_file: keeps the training's place on disk, so that a killed one continues from there.
        main_metric: decides which epoch is best, where that matters.
        on_update: takes the updates done and the mean loss of the last one, in every process; of several processes,
            each estimates the loss from its own share.
        on_epoch: takes an epoch's loss and metrics, in every process.
        zero: shards the training among the processes; None trains all weights in each.

    Raises:
        ConfigError: the batch cannot be shared by the processes.
        ClozeError: gradients became infinite or not a number.
        PreemptedError: the state file's stop was requested, and the state is saved.
    """
    plan = plan_updates(settings, len(task.train), seed, accelerator.num_processes)
    learner = make_learner(accelerator, model, settings, zero)
    state = state_file.restore(learner)
    pause = partial(state_file.stop_if_asked, state, learner)
    loader = evaluation_loader(accelerator, task)
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
                loss = make_update(accelerator, learner, task, settings, plan, state.updates, batch)
                state.losses.append(loss)
                state.updates += 1
                on_update(state.updates, loss * accelerator.num_processes)
                state_file.save_when_due(state, learner)
            is_scored = settings.scored == "every_epoch" or epoch == settings.epochs - 1
            network = learner.whole()
            outputs = evaluate(accelerator, network, task, loader, pause) if is_scored else None
            _close_epoch(accelerator, state, task.measure(outputs) if outputs is not None else {})
            if outputs is not None and settings.keep == "last":
                state.kept = Kept(epoch + 1, outputs, None)
            elif outputs is not None and _best_epoch(state, main_metric) == epoch + 1:
                tensors = unwrapped(network).state_dict()
                weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
                state.kept = Kept(epoch + 1, outputs, weights)
            on_epoch(state.epochs[-1])
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
    return Outcome(
        kept.outputs, tuple(state.epochs), kept.epoch, tuple(state.curve), unwrapped(network), tested
    )


def _close_epoch(accelerator: Accelerator, state: TrainingState, metrics: dict[str, float]) -> None:
    # In float64 and summed over processes: every process gets the losses of all predictions.
    shares = torch.tensor(state.losses, dtype=torch.float64, device=accelerator.device)
    losses = torch.as_tensor(accelerator.reduce(shares))
    state.epochs.append(EpochScore(update=state.updates, loss=float(losses.mean()), metrics=metrics))
    state.curve += losses.tolist()
    state.losses = []


def _best_epoch(state: TrainingState, main_metric: str) -> int:
    """The first epoch with the highest main metric, from 1."""
    values = [epoch.metrics[main_metric] for epoch in state.epochs]
    return values.index(max(values)) + 1


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
    accelerator: Accelerator, task: PreparedTask, part: EncodedRows | None = None
) -> DataLoader:
    """Batches of rows of similar length, longest first, with their numbers; of `task.evaluation` unless given."""
    rows_of = task.evaluation if part is None else part
    by_length = np.argsort(-rows_of.lengths, kind="stable")

    def collate(numbers: Sequence[int]) -> tuple[PaddedBatch, torch.Tensor]:
        rows = np.asarray(numbers)
        return task.batch(rows_of, rows), torch.from_numpy(rows)

    loader = DataLoader(by_length.tolist(), batch_size=task.evaluation_batch_size, collate_fn=collate)
    return cast(DataLoader, accelerator.prepare_data_loader(loader, device_placement=False))
