"""Dry run of a fine-tuning: everything is read, encoded and checked, and a few updates are timed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tune.config import FinetuneConfig
from pipeline.tune.workload import Workload, make_workload

if TYPE_CHECKING:
    from accelerate import Accelerator

    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.tune.forms.base import PreparedTask
    from pipeline.tune.settings import TrainingConfig
    from pipeline.tune.trials import TrialRunner

TIMED_UPDATES = 3
"""Updates that are timed, after one that is not."""


@dataclass(frozen=True, slots=True)
class TaskPreview:
    """The trainings of one task."""

    task: str
    kind: str
    train_examples: int
    evaluation_examples: int
    test_examples: int
    rows: int
    """Sequences of an epoch: more than examples where long texts give several."""
    tokens: int
    """Tokens of an epoch, with special tokens."""
    full_share: float
    """Share of the rows with `training.max_length` tokens: those that were cut, or just fit."""
    trained_parameters: int
    trainings: int
    updates: int
    """Of each training."""
    seconds: float
    """Estimate for all trainings on one device of this machine, without evaluation."""
    notes: tuple[str, ...]
    """What the form says about the encoded examples."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A run before it is started."""

    reference: str
    parameters: int
    """Of the first task's network."""
    directory: Path
    tasks: tuple[TaskPreview, ...]

    @property
    def seconds(self) -> float:
        """Estimate for the whole run, one training after another."""
        return sum(task.seconds for task in self.tasks)


def preview(config: FinetuneConfig, pretrained: PretrainedModel | None) -> Preview:
    """Read and encode the tasks, make the networks and time some updates of each; nothing is written or tracked.

    Raises:
        MissingInputError, ConfigError, MismatchError: as the run itself, before its first training.
    """
    from models.weights import count_parameters
    from pipeline.run.tracking import start_run
    from pipeline.tune.processes import make_accelerator
    from pipeline.tune.starting import initial_network
    from pipeline.tune.trials import TrialRunner

    workload = make_workload(config, pretrained)
    accelerator = make_accelerator(config)
    runner = TrialRunner(accelerator, workload, Path(), start_run)
    weights = pretrained.state_dict() if pretrained else None
    found, parameters = [], 0
    for name in workload.tasks:
        task = runner.task(name)
        model = initial_network(task, config.seeds[0], weights, config.training_of(name).peft)
        parameters = parameters or count_parameters(model)
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        seconds = _seconds_of_a_token(accelerator, model, task, config.training_of(name))
        found.append(_preview(workload, runner, name, seconds, trained))
    return Preview(workload.reference or "random weights", parameters, workload.directory, tuple(found))


def _preview(
    workload: Workload, runner: TrialRunner, name: str, seconds_of_a_token: float, trained: int
) -> TaskPreview:
    task, data = runner.task(name), workload.tasks[name]
    lengths = task.train.lengths
    trials = [trial for trial in workload.trials if trial.task == name]
    epochs = [workload.config.training_of(name, dict(trial.choice)).epochs for trial in trials]
    longest = workload.config.training_of(name).max_length
    return TaskPreview(
        task=name,
        kind=workload.config.tasks[name].kind,
        train_examples=len(data.train),
        evaluation_examples=len(data.evaluation),
        test_examples=len(data.test),
        rows=len(lengths),
        tokens=int(lengths.sum()),
        full_share=float((lengths >= longest).mean()),
        trained_parameters=trained,
        trainings=len(trials),
        updates=max(map(runner.num_updates, trials)),
        seconds=seconds_of_a_token * float(lengths.sum()) * sum(epochs),
        notes=task.notes,
    )


def _seconds_of_a_token(
    accelerator: Accelerator, model, task: PreparedTask, settings: TrainingConfig
) -> float:
    """Seconds of an update, for each of its tokens."""
    from pipeline.tune.learner import PlainLearner
    from pipeline.tune.updates import Updater, plan_updates

    plan = plan_updates(settings, len(task.train), 0, accelerator.num_processes)
    learner = PlainLearner(accelerator, model, settings)
    learner.network.train()
    updater = Updater(accelerator, learner, task, settings, plan)
    batches = plan.epoch_batches(0)[: TIMED_UPDATES + 1]
    started, tokens = time.perf_counter(), 0
    for update, batch in enumerate(batches):
        if update == 1:
            # The first one allocates memory.
            started, tokens = time.perf_counter(), 0
        updater.make(update, batch)
        tokens += int(task.train.lengths[batch].sum())
    seconds = time.perf_counter() - started
    learner.close()
    return seconds / max(tokens, 1)
