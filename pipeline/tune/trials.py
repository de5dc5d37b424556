"""Run one training of a workload: weights in; files, record and tracked metrics out."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import orjson
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor, nn

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import seal_signed, unseal_signed, write_durably
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.storage import storage_errors
from cluster.stopping import StopFile, stop_on_sigterm
from models.peft.apply import trained_share
from pipeline.run.log.wandb_sink import WandbCopy
from pipeline.run.tracking import TrackedRun, end_run, tracking_uri
from pipeline.tune.adapted import trained_tensors
from pipeline.tune.batches import sample_examples
from pipeline.tune.distillation.comparison import Compared, compare
from pipeline.tune.distillation.task import DistilledTask
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import PreparedTask, TaskContext
from pipeline.tune.loss_curve import LossCurve
from pipeline.tune.processes import on_first
from pipeline.tune.results import (
    IN_PROGRESS,
    TRIAL_RECORDS,
    Trial,
    TrialRecord,
    file_entries,
)
from pipeline.tune.scores import TEACHER, EpochScore, Score, same_prediction
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.starting import initial_network
from pipeline.tune.trainer import Callbacks, Outcome, train
from pipeline.tune.training_state import EpochReport, StateFile
from pipeline.tune.updates import plan_updates
from pipeline.tune.workload import Workload

OnProgress = Callable[[int, str], None]
"""Told of updates that were done since the last call, and how the training stands."""
GRACE_S = 25.0
"""Seconds that a training has for saving after SIGTERM; `torchrun` and Kubernetes kill after 30."""


class StartRun(Protocol):
    """Starts a tracked run or continues one, as `pipeline.run.tracking.start_run` does."""

    def __call__(
        self,
        experiment: str,
        name: str,
        *,
        config: dict,
        tags: dict[str, str],
        runs_dir: Path,
        resume: str | None = None,
    ) -> TrackedRun: ...


class TrialRunner:
    """Runs trainings of a workload, in all processes together. Tasks are encoded and weights read once."""

    def __init__(
        self,
        accelerator: Accelerator,
        workload: Workload,
        workspace: Path,
        track: StartRun,
    ) -> None:
        self._accelerator = accelerator
        self._workload = workload
        self._workspace = workspace
        self._track = track
        self._prepared: dict[str, PreparedTask] = {}

    def num_updates(self, trial: Trial) -> int:
        """Updates of a training, if it is not ended early.

        Raises:
            ConfigError: the batch cannot be shared by the processes.
        """
        settings = self._settings(trial)
        num_rows = len(self.task(trial.task).train)
        return plan_updates(settings, num_rows, trial.seed, self._accelerator.num_processes).num_updates

    def run(self, trial: Trial, on_progress: OnProgress, request: StopFile) -> TrialRecord:
        """Train, write predictions (and weights), then the record. A failure marks the tracked run as failed.

        A training that was begun before goes on after its last saved update, in the same tracked run.

        Args:
            request: from `stopping`.

        Raises:
            PreemptedError: the stop was requested; the training's state is saved.
            ClozeError: the training failed.
        """
        begun = _Begun.read(self._workspace, trial, self._workload.identity(trial))
        tracked = on_first(self._accelerator, lambda: self._start_tracking(trial, begun.tracked_run))
        begun = dataclasses.replace(begun, tracked_run=tracked.run_id)
        if self._accelerator.is_main_process:
            tracked = self._with_wandb(tracked, trial)
        try:
            record = self._train_and_record(trial, tracked, begun, on_progress, request)
        except BaseException as error:
            if self._accelerator.is_main_process:
                # The error that ended the training must not be lost for one of the tracking store.
                with suppress(Exception):
                    tracked.finish(ended_as(error))
            raise
        if self._accelerator.is_main_process:
            tracked.finish()
        return record

    def task(self, name: str) -> PreparedTask:
        """A task, encoded."""
        if name not in self._prepared:
            workload = self._workload
            data, config = workload.tasks[name], workload.config.tasks[name]
            settings = workload.config.training_of(name)
            used = sample_examples(len(data.train), settings.max_train_examples)
            data = dataclasses.replace(data, train=tuple(data.train[number] for number in used))
            context = TaskContext(config, data, settings, workload.model, workload.tokenizer)
            form, teacher = FORMS[config.form], workload.teachers.get(name)
            self._prepared[name] = (
                cast(PreparedTask, DistilledTask.prepare(form, context, teacher, self._accelerator.device))
                if teacher
                else form(context)
            )
        return self._prepared[name]

    def _settings(self, trial: Trial) -> TrainingConfig:
        return self._workload.config.training_of(trial.task, dict(trial.choice))

    def _train_and_record(
        self, trial: Trial, tracked: TrackedRun, begun: _Begun, on_progress: OnProgress, request: StopFile
    ) -> TrialRecord:
        started = time.monotonic()
        task, config = self.task(trial.task), self._workload.config
        pretrained = trial.initial == "pretrained"
        weights, peft = self._checkpoint_weights if pretrained else None, self._settings(trial).peft
        model = initial_network(task, trial.seed, weights, peft)
        path = self._workspace / IN_PROGRESS / f"{trial.name}.safetensors"
        state_file = StateFile(path, begun.identity, self._accelerator, config.save_every_s, request)
        if self._accelerator.is_main_process:
            begun.write(self._workspace, trial)
        curve = LossCurve(tracked, f"{trial.task}/loss", config.log_every_updates)
        done = 0

        def on_update(updates: int, loss: float) -> None:
            nonlocal done
            on_progress(updates - done, f"{trial.name} loss {loss:.3f}")
            done = updates
            if self._accelerator.is_main_process:
                curve.add(updates, loss)

        def on_epoch(report: EpochReport) -> None:
            if self._accelerator.is_main_process:
                curve.send(report.update)
                self._log(tracked, trial, report)

        outcome = train(
            self._accelerator,
            model,
            task,
            self._settings(trial),
            trial.seed,
            main_metric=config.tasks[trial.task].metrics[0],
            callbacks=Callbacks(on_update, on_epoch),
            state_file=state_file,
            zero=config.zero,
        )
        if done < (planned := self.num_updates(trial)):
            on_progress(planned - done, f"{trial.name} ended early")
        seconds = begun.seconds + time.monotonic() - started
        record = on_first(
            self._accelerator, lambda: self._record(trial, tracked, outcome.network, outcome, seconds)
        )
        state_file.remove()
        return record

    @cached_property
    def _checkpoint_weights(self) -> Mapping[str, Tensor]:
        assert self._workload.pretrained, "only a workload with a checkpoint has pretrained trials"
        return self._workload.pretrained.state_dict()

    def _record(
        self, trial: Trial, tracked: TrackedRun, model: nn.Module, outcome: Outcome, seconds: float
    ) -> TrialRecord:
        task, data = self.task(trial.task), self._workload.tasks[trial.task]
        settings = self._settings(trial)
        distilled = self._distilled(trial, model)
        contents = task.files(outcome.outputs) | {"losses.json": orjson.dumps(list(outcome.losses))}
        score = Score(
            task=trial.task,
            initial=trial.initial,
            seed=trial.seed,
            choice=dict(trial.choice),
            main_metric=self._workload.config.tasks[trial.task].metrics[0],
            metrics=outcome.kept.metrics,
            trained_share=None if settings.peft is None else trained_share(model),
            kept_epoch=outcome.kept.epoch if settings.keep == "best" else None,
            same_prediction=same_prediction(contents.get("predictions.jsonl", b"")),
            num_train_examples=len(sample_examples(len(data.train), settings.max_train_examples)),
            num_evaluation_examples=len(data.evaluation),
            epochs=tuple(EpochScore(update=e.update, loss=e.loss, metrics=e.metrics) for e in outcome.epochs),
            distillation=distilled.sizes if distilled else None,
            baselines=task.baselines() | ({TEACHER: distilled.metrics} if distilled else {}),
        )
        for name, measured in score.baselines.items():
            tracked.log_metrics({f"{trial.task}/{name}/{metric}": v for metric, v in measured.items()}, 0)
        if outcome.test_outputs is not None:
            contents |= task.submission(outcome.test_outputs)
        with storage_errors(self._workspace):
            files = {trial.file(kind): content for kind, content in contents.items()}
            for name, content in files.items():
                write_durably(self._workspace / name, content)
            written = list(files)
            if self._workload.config.save_models:
                written.append(trial.model_file)
                self._save_weights(trial, model)
            record = TrialRecord(
                identity=self._workload.identity(trial),
                score=score,
                files=file_entries(self._workspace, written),
                tracked_run=tracked.run_id,
                seconds=round(seconds, 3),
                examples_per_second=distilled.examples_per_second if distilled else None,
            )
            TRIAL_RECORDS.write(self._workspace, record)
        return record

    def _distilled(self, trial: Trial, model: nn.Module) -> Compared | None:
        """Teacher and student side by side; None without a teacher."""
        task, teacher = self.task(trial.task), self._workload.teachers.get(trial.task)
        if not isinstance(task, DistilledTask) or teacher is None:
            return None
        return compare(task, model, teacher)

    def _save_weights(self, trial: Trial, model: nn.Module) -> None:
        """Write the weights, or what was trained of them, under a temporary name first: a killed run must not leave
        half a file."""
        peft = self._settings(trial).peft
        tensors, metadata = (
            (model.state_dict(), None)
            if peft is None
            else trained_tensors(model, self.task(trial.task).parts, peft)
        )
        path = self._workspace / trial.model_file
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(stored, str(temporary), metadata)
        os.replace(temporary, path)

    def _with_wandb(self, tracked: TrackedRun, trial: Trial) -> TrackedRun:
        """The tracked run with a copy in Weights & Biases, where the settings ask for it."""
        config = self._workload.config
        if config.wandb is None:
            return tracked
        copy = WandbCopy(
            config.wandb,
            run_id=tracked.run_id,
            name=self._tracked_name(trial),
            group=config.experiment,
            config=self._tracked_settings(trial),
            # Not in the workspace, which becomes the artefact.
            directory=config.runs_dir.resolve(),
        )
        return dataclasses.replace(tracked, copy=copy)

    def _tracked_name(self, trial: Trial) -> str:
        return f"{self._workload.config.name}/{self._workload.directory.name}/{trial.name}"

    def _tracked_settings(self, trial: Trial) -> dict[str, Any]:
        settings = self._workload.settings
        return {
            **{name: settings[name] for name in ("model", "precision")},
            "task": settings["tasks"][trial.task]
            | {"training": self._settings(trial).model_dump(mode="json")},
            "seed": trial.seed,
            "initial": trial.initial,
        }

    def _start_tracking(self, trial: Trial, resume: str | None) -> TrackedRun:
        workload, config = self._workload, self._workload.config
        return self._track(
            config.experiment,
            self._tracked_name(trial),
            config=self._tracked_settings(trial),
            tags={
                "cloze.task": trial.task,
                "cloze.initial": trial.initial,
                "cloze.seed": str(trial.seed),
                "cloze.reference": (workload.reference or "") if trial.initial == "pretrained" else "",
                "cloze.scores": str(workload.directory.resolve()),
            },
            runs_dir=config.runs_dir,
            resume=resume,
        )

    def _log(self, tracked: TrackedRun, trial: Trial, report: EpochReport) -> None:
        """Log metrics under the task's name, because the checkpoint's logged model gets the metrics of all tasks."""
        pretrained = self._workload.pretrained if trial.initial == "pretrained" else None
        measured = {f"{trial.task}/{name}": value for name, value in report.metrics.items()}
        if measured:
            tracked.log_metrics(measured, report.update, pretrained.model_id if pretrained else None)


def ended_as(error: BaseException) -> str:
    """MLflow's status of a training that an error ended."""
    return "KILLED" if isinstance(error, PreemptedError | KeyboardInterrupt) else "FAILED"


def end_tracked_runs(workload: Workload, workspace: Path, trials: Iterable[Trial], status: str) -> None:
    """End the MLflow runs of trainings whose processes could not do so; runs that have ended stay as they are."""
    uri = tracking_uri(workload.config.runs_dir)
    for trial in trials:
        if run_id := _Begun.read(workspace, trial, workload.identity(trial)).tracked_run:
            with suppress(Exception):
                end_run(uri, run_id, status)


def stop_requests(workspace: Path) -> Path:
    """Directory of the requests to stop the trainings in a workspace."""
    return workspace / IN_PROGRESS


@contextmanager
def stopping(workspace: Path, *, clears: bool) -> Iterator[StopFile]:
    """Inside the block, SIGTERM lets the trainings in a workspace save and stop.

    Args:
        clears: whether this is the process that removes older requests.
    """
    requests = stop_requests(workspace)
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Begun:
    """The note of a training that has begun."""

    identity: str
    tracked_run: str | None = None
    """Its MLflow run, which a continued training goes on with."""
    seconds: float = 0.0
    """Time of earlier attempts."""
    started_at: float = 0.0

    @classmethod
    def read(cls, workspace: Path, trial: Trial, identity: str) -> _Begun:
        """The note of an earlier attempt at the same training; a new one where there is none."""
        try:
            note = cls(**unseal_signed(orjson.loads(read_bytes(cls._path(workspace, trial)))))
        except (OSError, ValueError, TypeError):
            return cls(identity)
        if note.identity != identity:
            return cls(identity)
        state = workspace / IN_PROGRESS / f"{trial.name}.safetensors"
        worked = state.stat().st_mtime - note.started_at if state.exists() else 0.0
        return dataclasses.replace(note, seconds=note.seconds + max(0.0, worked))

    def write(self, workspace: Path, trial: Trial) -> None:
        """Note that the training has begun, now."""
        path = self._path(workspace, trial)
        with storage_errors(path):
            path.parent.mkdir(exist_ok=True)
            note = dataclasses.replace(self, started_at=time.time())
            write_durably(path, orjson.dumps(seal_signed(dataclasses.asdict(note))))

    @staticmethod
    def _path(workspace: Path, trial: Trial) -> Path:
        return workspace / IN_PROGRESS / f"{trial.name}.json"
