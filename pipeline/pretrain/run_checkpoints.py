"""The checkpoints of a run as its trainer sees them: where to go on from, saving, and telling of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from cluster.artefacts.errors import StorageError
from cluster.train_group import Rank
from pipeline.checkpoints.checkpoint import TrainerState, evaluated, read_trainer_state, step_of
from pipeline.checkpoints.retention import Retention, best_step, newest_good
from pipeline.checkpoints.saver import CheckpointSaver, Committed, Contents
from pipeline.checkpoints.store import store_of
from pipeline.engine.interface import TrainingEngine
from pipeline.pretrain.collectives import from_rank_zero
from pipeline.pretrain.guards.endings import require_not_lost
from pipeline.pretrain.guards.fence import Fence
from pipeline.runs.config import PretrainConfig
from pipeline.runs.directory import RunDirectory
from pipeline.runs.history import logged_checkpoints
from pipeline.runs.inputs import Inputs
from pipeline.runs.log.reporter import Reporter
from pipeline.runs.log.sender import METRIC_PREFIXES

MAX_FAILED_SAVES = 3
"""Saves in a row that may fail; the last of them ends the run."""


@dataclass(frozen=True, slots=True)
class Start:
    """A checkpoint to go on from."""

    directory: Path
    """On this machine."""
    state: TrainerState


class RunCheckpoints:
    """All ranks make one, and call its methods at the same steps."""

    def __init__(self, run: RunDirectory, config: PretrainConfig, rank: Rank) -> None:
        self._run, self._config, self._rank = run, config, rank
        self._store = store_of(run, config)
        self._failed: list[StorageError] = []
        self._committed = -1
        """Step of the newest checkpoint that this attempt saved."""
        self._told: set[int] = set()
        """Steps of the checkpoints that the log says are there; rank 0 knows."""

    def newest(self) -> Start | None:
        """The newest good checkpoint, chosen and verified by rank 0 for all; None before the first.

        Raises:
            CorruptCheckpointError: there are checkpoints and none verifies.
            StorageError: where they are kept cannot be read.
        """
        step: int | None = None
        if self._rank.rank == 0:
            try:
                path, messages = newest_good(self._store)
            except StorageError as error:
                raise StorageError(
                    error.problem,
                    kept="the run and its checkpoints",
                    next_step=f"when they can be read again: cloze resume {self._run.typed}",
                ) from error
            require_not_lost(self._run, path)
            for message in messages:
                self._run.record_event("checkpoint-set-aside", message=message)
            step = None if path is None else step_of(path)
        step = from_rank_zero(step)
        if step is None:
            return None
        directory = self._store.local(step)
        if self._store.copies and self._rank.local_rank == 0 and self._rank.rank != 0:
            self._store.fetch(step)
        dist.barrier()
        return Start(directory, read_trainer_state(directory))

    def begin(
        self,
        inputs: Inputs,
        reporter: Reporter,
        while_waiting: Callable[[], None],
        fence: Fence | None = None,
    ) -> None:
        """Get ready to save; logs what became of checkpoints just before the attempt before ended.

        Args:
            while_waiting: called again and again while a save is waited for.
            fence: that of this group, on rank 0; no checkpoint is published behind it.
        """
        self._reporter = reporter
        settings = self._config.checkpoint
        self._saver = CheckpointSaver(
            self._store,
            self._rank,
            Contents(
                model=inputs.model,
                tokenizer_json=inputs.vocabulary.tokenizer_json,
                inputs=inputs.entries,
                ema=self._config.ema is not None,
            ),
            Retention(settings.keep_last, settings.keep_every_steps),
            asynchronous=settings.asynchronous,
            while_waiting=while_waiting,
            before_publishing=fence.require if fence is not None else lambda: None,
        )
        if self._rank.rank == 0:
            self._catch_up()

    @property
    def attempt(self) -> str:
        """Names this start of the run's processes."""
        return self._saver.attempt

    @property
    def newest_place(self) -> str | None:
        """Path or URI of the newest checkpoint; None before the first."""
        steps = self._store.steps()
        return self._store.place(steps[-1]) if steps else None

    def save(self, engine: TrainingEngine, state: TrainerState) -> None:
        """Have the state copied and written; it must not change before `before_update` was called."""
        # What the checkpoint says was logged must be there after a power failure, too.
        self._reporter.sync()
        self._saver.save(engine, state)

    def before_update(self) -> None:
        """Return when weights and optimizer state may change."""
        self._saver.before_update()

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        self._saver.wait()
        self.tell()

    def tell(self) -> bool:
        """Log what became of saves; whether too many of them failed, on rank 0."""
        for outcome in self._saver.finished():
            if isinstance(outcome, Committed):
                self._failed.clear()
                self._tell_of(outcome)
            else:
                self._failed.append(outcome.error)
                self._reporter.history(
                    "checkpoint-failed", step=outcome.step, message=outcome.error.problem[:2000]
                )
        return len(self._failed) >= MAX_FAILED_SAVES

    def require_saved(self, step: int) -> None:
        """Raise StorageError, on all ranks, unless the checkpoint of a step is there."""
        # What was committed counts, also where it was moved away since.
        if not from_rank_zero(
            self._rank.rank == 0 and (step == self._committed or step in self._store.steps())
        ):
            raise self.failure()

    def failure(self) -> StorageError:
        """The error of a run whose checkpoints cannot be saved."""
        why = self._failed[-1].problem if self._failed else "see its history (events.jsonl)"
        return StorageError(
            f"The last checkpoints of {self._run.path.name} could not be saved: {why}",
            kept="the checkpoints before them",
            next_step=f"make room, or give permission, then: cloze resume {self._run.typed}",
        )

    def _catch_up(self) -> None:
        """Log what was done to checkpoints by somebody who was killed before it could say so."""
        last, self._told = logged_checkpoints(self._run)
        steps = self._store.steps()
        if steps:
            self._forget_all_but(steps, steps[-1])
        for step in (step for step in steps if step > last):
            manifest = self._store.manifest(step)
            _, held_out = evaluated(manifest.stats)
            is_best = best_step(self._store) == step
            self._log(step, self._store.place(step), manifest.fingerprint, held_out, is_best)

    def _tell_of(self, saved: Committed) -> None:
        self._committed = saved.step
        self._forget_all_but(saved.kept, saved.step)
        self._log(saved.step, saved.place, saved.fingerprint, saved.held_out, saved.best)
        if saved.warning:
            self._reporter.history("retention-failed", step=saved.step, message=saved.warning)
        times = {"checkpoint_waited_s": saved.waited_s, "checkpoint_s": saved.seconds}
        self._reporter.write("saving", saved.step, times | {"checkpoint_bytes": saved.size_bytes})

    def _forget_all_but(self, steps: Collection[int], newest: int) -> None:
        """Have tracking forget what was told of and is not there any more. What is newer than `newest` was set aside,
        and will be made again."""
        gone = [step for step in sorted(self._told) if step < newest and step not in steps]
        if gone and self._reporter.write("forget", newest, {"steps": gone}):
            self._told.difference_update(gone)

    def _log(
        self, step: int, place: str, fingerprint: str, held_out: Mapping[str, float], best: bool
    ) -> None:
        local = Path(place)
        self._told.add(step)
        # What was measured at an earlier step is none of these weights'.
        evaluated_ms = self._reporter.evaluated_ms(step)
        entry = {
            "directory": str(local.resolve()) if local.is_dir() else place,
            "fingerprint": fingerprint,
            "metrics": {}
            if evaluated_ms is None
            else {f"{METRIC_PREFIXES['held_out']}{name}": value for name, value in held_out.items()},
            "evaluated_ms": evaluated_ms,
            "best": best,
            "kept": sorted(self._told),
        }
        self._reporter.write("checkpoint", step, entry)
