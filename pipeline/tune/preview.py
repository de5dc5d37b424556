"""Dry run of a fine-tuning: everything is read, encoded and checked, and a few updates are timed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from models.weights import count_parameters
from pipeline.checkpoint.references import PretrainedModel
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms.base import PreparedTask
from pipeline.tune.learner import PlainLearner, make_accelerator
from pipeline.tune.networks import initial_network
from pipeline.tune.runner import TrialRunner
from pipeline.tune.trainer import make_update, plan_updates
from pipeline.tune.trials import plan_trials

TIMED_UPDATES = 3
"""Updates that are timed, after one that is not."""


def preview(config: FinetuneConfig, pretrained: PretrainedModel | None) -> dict[str, Any]:
    """Read and encode the tasks, make the networks and time some updates of each; nothing is written or tracked.

    Returns:
        `reference`, `parameters` of the first task's network, `directory` of the scores, `seconds` for all trainings
        one after another, and for each of `tasks` its name, kind and numbers of examples; of an epoch `rows`, which are
        more than examples where long texts give several, their `tokens` with special ones, and `full_share`, the share
        of rows that were cut to `training.max_length`, or just fit; `trained_parameters`; the number of `trainings`,
        `updates` of each, and `seconds` of all on one device of this machine, without evaluation; and `notes`,
        sentences about the encoded examples.

    Raises:
        MissingInputError, ConfigError, MismatchError: as the run itself, before its first training.
    """
    trials = plan_trials(config, pretrained)
    accelerator = make_accelerator(config)
    runner = TrialRunner(accelerator, trials, Path())
    weights = pretrained.state_dict() if pretrained else None
    found: list[dict[str, Any]] = []
    parameters = 0
    for name, data in trials.tasks.items():
        task, settings = runner.task(name), config.training_of(name)
        model = initial_network(task, config.seeds[0], weights, settings.peft)
        parameters = parameters or count_parameters(model)
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        own = [trial for trial in trials.all if trial.task == name]
        epochs = sum(config.training_of(name, dict(trial.choice)).epochs for trial in own)
        tokens = int(task.train.lengths.sum())
        found.append(
            {
                "task": name,
                "kind": config.tasks[name].kind,
                "train_examples": len(data.train),
                "evaluation_examples": len(data.evaluation),
                "test_examples": len(data.test),
                "rows": len(task.train),
                "tokens": tokens,
                "full_share": float((task.train.lengths >= settings.max_length).mean()),
                "trained_parameters": trained,
                "trainings": len(own),
                "updates": max(map(runner.num_updates, own)),
                "seconds": _seconds_of_a_token(accelerator, model, task, settings) * tokens * epochs,
                "notes": task.notes,
            }
        )
    return {
        "reference": trials.reference or "random weights",
        "parameters": parameters,
        "directory": str(trials.directory),
        "tasks": found,
        "seconds": sum(task["seconds"] for task in found),
    }


def _seconds_of_a_token(
    accelerator: Accelerator, model: nn.Module, task: PreparedTask, settings: TrainingConfig
) -> float:
    """Seconds of an update, for each of its tokens."""
    plan = plan_updates(settings, len(task.train), 0, accelerator.num_processes)
    learner = PlainLearner(accelerator, model, settings)
    learner.network.train()
    batches = plan.epoch_batches(0)[: TIMED_UPDATES + 1]
    started, tokens = time.perf_counter(), 0
    for update, batch in enumerate(batches):
        if update == 1:
            # The first one allocates memory.
            started, tokens = time.perf_counter(), 0
        make_update(accelerator, learner, task, plan, update, batch)
        tokens += int(task.train.lengths[batch].sum())
    seconds = time.perf_counter() - started
    learner.close()
    return seconds / max(tokens, 1)
