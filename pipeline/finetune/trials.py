"""Run one training of a workload: weights in; files, record and tracked metrics out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor, nn

from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from cluster.progress import Advance
from pipeline.finetune.batches import sample_examples
from pipeline.finetune.forms.base import PreparedTask, TaskContext
from pipeline.finetune.forms.registry import FORMS
from pipeline.finetune.processes import on_first
from pipeline.finetune.results import TRIAL_RECORDS, Trial, TrialRecord, file_entries
from pipeline.finetune.scores import EpochScore, Score
from pipeline.finetune.starting import initial_network
from pipeline.finetune.trainer import EpochReport, Outcome, plan_updates, train
from pipeline.finetune.workload import Workload
from pipeline.runs.tracking import TrackedRun


class StartRun(Protocol):
    """Starts a tracked run, as `pipeline.runs.tracking.start_run` does."""

    def __call__(
        self, experiment: str, name: str, *, config: dict, tags: dict[str, str], runs_dir: Path
    ) -> TrackedRun: ...


class TrialRunner:
    """Runs the trainings of a workload, in all processes together. Tasks are encoded and weights read once."""

    def __init__(
        self, accelerator: Accelerator, workload: Workload, workspace: Path, track: StartRun
    ) -> None:
        self._accelerator = accelerator
        self._workload = workload
        self._workspace = workspace
        self._track = track
        self._prepared: dict[str, PreparedTask] = {}

    def num_updates(self, trial: Trial) -> int:
        """Updates of a training.

        Raises:
            ConfigError: the batch cannot be shared by the processes.
        """
        settings = self._workload.config.training_of(trial.task)
        num_rows = len(self._task(trial.task).train)
        return plan_updates(settings, num_rows, trial.seed, self._accelerator.num_processes).num_updates

    def run(self, trial: Trial, advance: Advance) -> TrialRecord:
        """Train, write predictions (and weights), then the record. A failure marks the tracked run as failed."""
        tracked = on_first(self._accelerator, lambda: self._start_tracking(trial))
        try:
            record = self._train_and_record(trial, tracked, advance)
        except BaseException:
            if self._accelerator.is_main_process:
                tracked.finish("FAILED")
            raise
        if self._accelerator.is_main_process:
            tracked.finish()
        return record

    def _train_and_record(self, trial: Trial, tracked: TrackedRun, advance: Advance) -> TrialRecord:
        task = self._task(trial.task)
        pretrained = trial.initial == "pretrained"
        model = initial_network(task, trial.seed, self._checkpoint_weights if pretrained else None)
        settings = self._workload.config.training_of(trial.task)

        def on_update(loss: float) -> None:
            advance(1, f"{trial.name} loss {loss:.3f}")

        def on_epoch(report: EpochReport) -> None:
            if self._accelerator.is_main_process:
                self._log(tracked, trial, report)

        outcome = train(self._accelerator, model, task, settings, trial.seed, on_update, on_epoch)
        return on_first(self._accelerator, lambda: self._record(trial, tracked, model, outcome))

    @cached_property
    def _checkpoint_weights(self) -> Mapping[str, Tensor]:
        assert self._workload.pretrained, "only a workload with a checkpoint has pretrained trials"
        return self._workload.pretrained.state_dict()

    def _task(self, name: str) -> PreparedTask:
        if name not in self._prepared:
            workload = self._workload
            data, config = workload.tasks[name], workload.config.tasks[name]
            settings = workload.config.training_of(name)
            used = sample_examples(len(data.train), settings.max_train_examples)
            data = dataclasses.replace(data, train=tuple(data.train[number] for number in used))
            context = TaskContext(config, data, settings, workload.model, workload.tokenizer)
            self._prepared[name] = FORMS[config.form](context)
        return self._prepared[name]

    def _record(self, trial: Trial, tracked: TrackedRun, model: nn.Module, outcome: Outcome) -> TrialRecord:
        task, data = self._task(trial.task), self._workload.tasks[trial.task]
        limit = self._workload.config.training_of(trial.task).max_train_examples
        score = Score(
            task=trial.task,
            initial=trial.initial,
            seed=trial.seed,
            main_metric=self._workload.config.tasks[trial.task].metrics[0],
            metrics=outcome.epochs[-1].metrics,
            num_train_examples=len(sample_examples(len(data.train), limit)),
            num_evaluation_examples=len(data.evaluation),
            epochs=tuple(EpochScore(update=e.update, loss=e.loss, metrics=e.metrics) for e in outcome.epochs),
            baselines=task.baselines(),
        )
        for name, measured in score.baselines.items():
            tracked.log_metrics({f"{trial.task}/{name}/{metric}": v for metric, v in measured.items()}, 0)
        with storage_errors(self._workspace):
            files = {trial.file(kind): content for kind, content in task.files(outcome.outputs).items()}
            for name, content in files.items():
                write_durably(self._workspace / name, content)
            written = list(files)
            if self._workload.config.save_models:
                written.append(trial.model_file)
                _save_weights(model, self._workspace / trial.model_file)
            record = TrialRecord(
                identity=self._workload.identity(trial),
                score=score,
                files=file_entries(self._workspace, written),
                tracked_run=tracked.run_id,
            )
            TRIAL_RECORDS.write(self._workspace, record)
        return record

    def _start_tracking(self, trial: Trial) -> TrackedRun:
        workload, config = self._workload, self._workload.config
        settings = workload.settings
        return self._track(
            config.experiment,
            f"{config.name}/{trial.name}",
            config={
                **{name: settings[name] for name in ("model", "precision")},
                "task": settings["tasks"][trial.task],
                "seed": trial.seed,
                "initial": trial.initial,
            },
            tags={
                "cloze.task": trial.task,
                "cloze.initial": trial.initial,
                "cloze.seed": str(trial.seed),
                "cloze.reference": (workload.reference or "") if trial.initial == "pretrained" else "",
                "cloze.scores": str(workload.directory),
            },
            runs_dir=config.runs_dir,
        )

    def _log(self, tracked: TrackedRun, trial: Trial, report: EpochReport) -> None:
        """Log metrics under the task's name, because the checkpoint's logged model gets the metrics of all tasks."""
        pretrained = self._workload.pretrained if trial.initial == "pretrained" else None
        measured = {f"{trial.task}/{name}": value for name, value in report.metrics.items()}
        if measured:
            tracked.log_metrics(measured, report.update, pretrained.model_id if pretrained else None)
        tracked.log_metrics({f"{trial.task}/loss": report.loss}, report.update)


def _save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights under a temporary name first: a killed run must not leave half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}, str(temporary)
    )
    os.replace(temporary, path)
