"""Run one trial: weights in; files, record and tracked metrics out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from accelerate import Accelerator
from torch import Tensor, nn

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from cluster.stopping import StopFile, stop_on_sigterm
from models.peft.apply import trained_share
from pipeline.run.tracking import TrackedRun, end_run, start_run, tracking_uri
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import PreparedTask, TaskContext
from pipeline.tune.learner import on_first
from pipeline.tune.networks import initial_network, trained_tensors
from pipeline.tune.scores import (
    IN_PROGRESS,
    TEACHER,
    TRIAL_RECORDS,
    EpochScore,
    Score,
    Trial,
    TrialRecord,
    file_entries,
    same_prediction,
)
from pipeline.tune.trainer import plan_updates, train
from pipeline.tune.training_state import TrainingState, read_facts, write_tensors
from pipeline.tune.trials import Trials, sample_examples

OnProgress = Callable[[int, str], None]
"""Takes the updates that were done since the last call, and the state of the training."""
GRACE_S = 25.0
"""Seconds that a training has for saving after SIGTERM; `torchrun` and Kubernetes kill after 30."""


class TrialRunner:
    """Runs trials, in all processes together. Tasks are encoded and weights read once."""

    def __init__(self, accelerator: Accelerator, trials: Trials, workspace: Path) -> None:
        self._accelerator = accelerator
        self._trials = trials
        self._workspace = workspace
        self._prepared: dict[str, Any] = {}

    def num_updates(self, trial: Trial) -> int:
        """Updates of a training, if it is not ended early.

        Raises:
            ConfigError: the batch cannot be shared by the processes.
        """
        num_rows, settings = len(self.task(trial.task).train), self._settings(trial)
        return plan_updates(settings, num_rows, trial.seed, self._accelerator.num_processes).num_updates

    def run(self, trial: Trial, on_progress: OnProgress, request: StopFile) -> TrialRecord:
        """Train, write predictions (and weights), then the record. A failure marks the tracked run as failed.

        A training that was begun before continues after its last saved update, in the same tracked run.

        Args:
            request: from `stopping`.

        Raises:
            PreemptedError: the stop was requested; the training's state is saved.
            ClozeError: the training failed.
        """
        is_first = self._accelerator.is_main_process
        state = TrainingState(
            state_file(self._workspace, trial),
            self._trials.identity(trial),
            self._accelerator,
            self._trials.config.save_every_s,
            request,
        )
        tracked = self._start_tracking(trial, state.tracked_run)
        try:
            record = self._train_and_record(trial, tracked, state, on_progress)
        except BaseException as error:
            if is_first:
                # The error that ended the training must not be lost for one of the tracking store.
                with suppress(Exception):
                    tracked.finish(ended_as(error))
            raise
        if is_first:
            tracked.finish()
        return record

    def task(self, name: str) -> PreparedTask:
        """A task, encoded."""
        if name not in self._prepared:
            trials = self._trials
            data, config = trials.tasks[name], trials.config.tasks[name]
            settings = trials.config.training_of(name)
            used = sample_examples(len(data.train), settings.max_train_examples)
            data = dataclasses.replace(data, train=tuple(data.train[number] for number in used))
            context = TaskContext(config, data, settings, trials.model, trials.tokenizer)
            form, teacher = FORMS[config.form], trials.teachers.get(name)
            if teacher is None:
                self._prepared[name] = form(context)
            else:
                from pipeline.tune.distillation import DistilledTask

                self._prepared[name] = DistilledTask(form, context, teacher, self._accelerator.device)
        return self._prepared[name]

    def _settings(self, trial: Trial) -> TrainingConfig:
        return self._trials.config.training_of(trial.task, dict(trial.choice))

    @cached_property
    def _checkpoint_weights(self) -> Mapping[str, Tensor]:
        assert self._trials.pretrained, "only with a checkpoint there are pretrained trials"
        return self._trials.pretrained.state_dict()

    def _train_and_record(
        self, trial: Trial, tracked: TrackedRun, state: TrainingState, on_progress: OnProgress
    ) -> TrialRecord:
        task, config, settings = self.task(trial.task), self._trials.config, self._settings(trial)
        pretrained = self._trials.pretrained if trial.initial == "pretrained" else None
        model = initial_network(
            task, trial.seed, self._checkpoint_weights if pretrained else None, settings.peft
        )
        is_first = self._accelerator.is_main_process
        state.tracked_run = tracked.run_id
        done, losses = 0, []

        def send_losses() -> None:
            """Log the mean of the losses that were not logged yet."""
            if losses:
                tracked.log_metrics({f"{trial.task}/loss": sum(losses) / len(losses)}, done)
                losses.clear()

        def on_update(updates: int, loss: float) -> None:
            nonlocal done
            on_progress(updates - done, f"{trial.name} loss {loss:.3f}")
            done = updates
            if is_first:
                losses.append(loss)
                if updates % config.log_every_updates == 0:
                    send_losses()

        def on_epoch(epoch: EpochScore) -> None:
            if not is_first:
                return
            send_losses()
            # Under the task's name, because the checkpoint's logged model gets the metrics of all tasks.
            measured = {f"{trial.task}/{name}": value for name, value in epoch.metrics.items()}
            if measured:
                tracked.log_metrics(measured, epoch.update, pretrained.model_id if pretrained else None)

        network, tested = train(
            self._accelerator,
            model,
            task,
            settings,
            trial.seed,
            state,
            on_update=on_update,
            on_epoch=on_epoch,
            zero=config.zero,
        )
        if done < (planned := self.num_updates(trial)):
            on_progress(planned - done, f"{trial.name} ended early")
        record = on_first(self._accelerator, lambda: self._record(trial, tracked, state, network, tested))
        state.remove()
        return record

    def _record(
        self,
        trial: Trial,
        tracked: TrackedRun,
        state: TrainingState,
        network: nn.Module,
        tested: np.ndarray | None,
    ) -> TrialRecord:
        """Write the files of a finished training, then its record.

        Args:
            tested: the outputs of examples without right answers.
        """
        seconds = round(state.seconds, 3)
        task, data = self.task(trial.task), self._trials.tasks[trial.task]
        settings, kept = self._settings(trial), state.kept_epoch
        assert state.outputs is not None, "the last epoch is scored"
        sizes, baselines, speeds = None, task.baselines(), None
        if trial.task in self._trials.teachers:
            sizes, baselines[TEACHER], speeds = self._prepared[trial.task].compare(network)
        contents = task.files(state.outputs) | {"losses.json": orjson.dumps(state.curve)}
        score = Score(
            task=trial.task,
            initial=trial.initial,
            seed=trial.seed,
            choice=dict(trial.choice),
            main_metric=self._trials.config.tasks[trial.task].metrics[0],
            metrics=state.epochs[kept - 1].metrics,
            trained_share=None if settings.peft is None else trained_share(network),
            kept_epoch=kept if settings.keep == "best" else None,
            same_prediction=same_prediction(contents.get("predictions.jsonl", b"")),
            num_train_examples=len(sample_examples(len(data.train), settings.max_train_examples)),
            num_evaluation_examples=len(data.evaluation),
            epochs=tuple(state.epochs),
            distillation=sizes,
            baselines=baselines,
        )
        for name, measured in score.baselines.items():
            tracked.log_metrics({f"{trial.task}/{name}/{metric}": v for metric, v in measured.items()}, 0)
        if tested is not None:
            contents |= task.submission(tested)
        with storage_errors(self._workspace):
            files = {trial.file(kind): content for kind, content in contents.items()}
            for name, content in files.items():
                write_durably(self._workspace / name, content)
            written = list(files)
            if self._trials.config.save_models:
                written.append(trial.model_file)
                tensors, metadata = (
                    (network.state_dict(), None)
                    if settings.peft is None
                    else trained_tensors(network, task.parts, settings.peft)
                )
                write_tensors(self._workspace / trial.model_file, tensors, metadata)
            record = TrialRecord(
                identity=self._trials.identity(trial),
                score=score,
                files=file_entries(self._workspace, written),
                tracked_run=tracked.run_id,
                seconds=seconds,
                examples_per_second=speeds,
            )
            TRIAL_RECORDS.write(self._workspace, record)
        return record

    def _start_tracking(self, trial: Trial, resume: str | None) -> TrackedRun:
        """Start the MLflow run of a training in all processes, and its copy in the first one."""
        trials, config = self._trials, self._trials.config
        name = f"{config.name}/{trials.directory.name}/{trial.name}"
        training = self._settings(trial).model_dump(mode="json")
        settings = {
            **{name: trials.settings[name] for name in ("model", "precision")},
            "task": trials.settings["tasks"][trial.task] | {"training": training},
            "seed": trial.seed,
            "initial": trial.initial,
        }
        tags = {
            "cloze.task": trial.task,
            "cloze.initial": trial.initial,
            "cloze.seed": str(trial.seed),
            "cloze.reference": (trials.reference or "") if trial.initial == "pretrained" else "",
            "cloze.scores": str(trials.directory.resolve()),
        }
        tracked = on_first(
            self._accelerator,
            lambda: start_run(
                config.experiment, name, config=settings, tags=tags, runs_dir=config.runs_dir, resume=resume
            ),
        )
        if config.wandb is None or not self._accelerator.is_main_process:
            return tracked
        from pipeline.run.log.wandb_sink import WandbCopy

        # The directory is not the workspace, which becomes the artefact.
        copy = WandbCopy(
            config.wandb,
            run_id=tracked.run_id,
            name=name,
            group=config.experiment,
            config=settings,
            directory=config.runs_dir.resolve(),
        )
        return dataclasses.replace(tracked, copy=copy)


def state_file(workspace: Path, trial: Trial) -> Path:
    """The file that describes a training that has begun and is not finished."""
    return workspace / IN_PROGRESS / f"{trial.name}.json"


def ended_as(error: BaseException) -> str:
    """MLflow's status of a training that an error ended."""
    return "KILLED" if isinstance(error, PreemptedError | KeyboardInterrupt) else "FAILED"


def end_tracked_runs(trials: Trials, workspace: Path, ended: Iterable[Trial], status: str) -> None:
    """End the MLflow runs of trainings whose processes could not do so; runs that have ended stay as they are."""
    uri = tracking_uri(trials.config.runs_dir)
    for trial in ended:
        facts = read_facts(state_file(workspace, trial), trials.identity(trial))
        if facts:
            with suppress(Exception):
                end_run(uri, facts["tracked_run"], status)


@contextmanager
def stopping(workspace: Path, *, clears: bool) -> Iterator[StopFile]:
    """Inside the block, SIGTERM lets the trainings in a workspace save and stop.

    Args:
        clears: whether this is the process that removes older requests.
    """
    requests = workspace / IN_PROGRESS
    with storage_errors(requests):
        requests.mkdir(exist_ok=True)
    with stop_on_sigterm(
        requests,
        grace_s=GRACE_S,
        next_step="run the same command again",
        kept="the finished trainings, and the others' last saved states",
        clears=clears,
    ) as request:
        yield request
