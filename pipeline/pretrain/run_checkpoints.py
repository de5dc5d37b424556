"""The checkpoints of an attempt: the one that it starts from, and those saved in the background and recorded in log and
history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import StorageError, TakenOverError
from cluster.artefacts.places import Uri
from cluster.collectives import from_rank_zero, while_others_wait
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import Counters, TrainerState, evaluated, read_trainer_state, step_of
from pipeline.checkpoint.saver import CheckpointSaver, Committed
from pipeline.checkpoint.store import CheckpointStore, apply_retention, best_step, newest_good
from pipeline.engine.deepspeed.engine import Engine
from pipeline.pretrain.ownership import Fence
from pipeline.pretrain.resume_checks import require_not_lost
from pipeline.run.config import PretrainConfig, identity_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import logged_checkpoints, published_steps
from pipeline.run.inputs import Inputs
from pipeline.run.log.lines import METRIC_PREFIXES, LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.state import Heartbeat

MAX_FAILED_SAVES = 3
"""Saves in a row that may fail; the last of them ends the run."""


def find_start(run: RunDirectory, rank: Rank, store: CheckpointStore) -> TrainerState | None:
    """The state of the newest good checkpoint, verified by rank 0, on this machine; None before the first. All ranks
    call it.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies.
        StorageError: the store cannot be read.
    """

    def newest_step() -> int | None:
        try:
            path, messages = newest_good(store)
        except StorageError as error:
            raise StorageError(
                error.problem,
                kept="the run and its checkpoints",
                next_step=f"when they can be read again: cloze resume {run.typed}",
            ) from error
        require_not_lost(run, path)
        for message in messages:
            run.record_event(Event.CHECKPOINT_SET_ASIDE, message=message)
        return None if path is None else step_of(path)

    step = from_rank_zero(while_others_wait(newest_step if rank.rank == 0 else None))
    if step is None:
        return None
    copies = isinstance(store.directory, Uri) and rank.local_rank == 0 and rank.rank != 0
    while_others_wait((lambda: store.fetch(step)) if copies else None)
    return read_trainer_state(store.fetch(step, deep=False))


@dataclass
class RunCheckpoints:
    """Saves the checkpoints of one attempt. All ranks make one, and call its methods at the same steps; rank 0 begins
    by logging the changes to checkpoints that the attempt before could not log any more."""

    run: RunDirectory
    config: PretrainConfig
    rank: Rank
    store: CheckpointStore
    inputs: Inputs
    log: RunLog
    heartbeat: Heartbeat
    """Beats while a save is waited for."""
    fence: Fence | None
    """The fence of this group, on rank 0; no checkpoint is published once another group owns the run."""

    def __post_init__(self) -> None:
        self._allowed_changes = [
            {"step": event["step"], "differences": event["differences"]}
            for event in self.run.events(Event.CHANGED)
        ]
        self._failed: list[StorageError] = []
        self._committed = -1
        """Step of the newest checkpoint that this attempt saved."""
        self._logged: set[int] = set()
        """Steps of the checkpoints that the log lists as existing; rank 0 knows."""
        settings = self.config.checkpoint
        self._saver = CheckpointSaver(
            self.store,
            self.rank,
            model=self.inputs.model,
            tokenizer_json=self.inputs.vocabulary.tokenizer_json,
            inputs=self.inputs.entries,
            ema=self.config.ema is not None,
            retain=lambda: apply_retention(
                self.store, settings.keep_last, settings.keep_every_steps, lambda: published_steps(self.run)
            ),
            asynchronous=settings.asynchronous,
            while_waiting=lambda: self.heartbeat.beat(self.heartbeat.step, "saving"),
            before_publishing=lambda: self.fence and self.fence.require(),
        )
        self.attempt = self._saver.attempt
        """Names this start of the run's processes."""
        if self.rank.rank == 0:
            self._catch_up()

    @property
    def newest_place(self) -> str | None:
        """Path or URI of the newest checkpoint; None before the first."""
        steps = self.store.steps()
        return self.store.place(steps[-1]) if steps else None

    def save(
        self, engine: Engine, counters: Counters, losses: list[float], skipped_data: Iterable[int]
    ) -> None:
        """Copy the state, with the loss window and the data that is left out, and have it written during training."""
        # The log up to the checkpoint's step must also survive a power failure.
        self.log.sync()
        config, info = self.config, self.run.info
        state = TrainerState(
            **counters.model_dump(),
            world_size=self.rank.world_size,
            zero_stage=config.zero.stage,
            data_fingerprint=self.inputs.data_fingerprint,
            store_fingerprints=[store.fingerprint for store in self.inputs.stores],
            identity=identity_of(config),
            metric=config.metric,
            run_id=info.run_id,
            run_name=info.name,
            losses=losses,
            skipped_data=list(skipped_data),
            allowed_changes=self._allowed_changes,
            attempt=self.attempt,
        )
        self._saver.save(engine, state)

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        self._saver.wait()
        self.log_saves()

    def log_saves(self) -> bool:
        """Log the outcomes of saves; returns, on rank 0, whether too many in a row failed."""
        for outcome in self._saver.finished():
            if not isinstance(outcome, Committed):
                self._failed.append(outcome.error)
                message = outcome.error.problem[:2000]
                self.log.history(Event.CHECKPOINT_FAILED, step=outcome.step, message=message)
                continue
            self._failed.clear()
            self._committed = outcome.step
            self._forget_all_but(outcome.kept, outcome.step)
            self._log_checkpoint(
                outcome.step, outcome.place, outcome.fingerprint, outcome.held_out, outcome.best
            )
            if outcome.warning:
                self.log.history(Event.RETENTION_FAILED, step=outcome.step, message=outcome.warning)
            times = {"checkpoint_waited_s": outcome.waited_s, "checkpoint_s": outcome.seconds}
            size = {"checkpoint_bytes": outcome.size_bytes}
            self.log.write(LogKind.SAVING, outcome.step, times | size)
        return len(self._failed) >= MAX_FAILED_SAVES

    def require_saved(self, step: int) -> None:
        """Wait for the checkpoint of a step, and raise, on all ranks, unless it is there.

        Raises:
            TakenOverError: another group has taken the run over, and this one may not publish.
            StorageError: the checkpoint could not be saved.
        """
        self.wait()
        error: StorageError | TakenOverError | None = None
        # A checkpoint that was committed and moved away since also counts.
        if self.rank.rank == 0 and step != self._committed and step not in self.store.steps():
            error = self.failure()
            try:
                if self.fence is not None:
                    self.fence.require()
            except (StorageError, TakenOverError) as lost:
                error = lost
        if (error := from_rank_zero(error)) is not None:
            raise error

    def failure(self) -> StorageError:
        """The error of a run whose checkpoints cannot be saved."""
        why = self._failed[-1].problem if self._failed else "see its history (events.jsonl)"
        return StorageError(
            f"The last checkpoints of {self.run.path.name} could not be saved: {why}",
            kept="the checkpoints before them",
            next_step=f"make room, or give permission, then: cloze resume {self.run.typed}",
        )

    def _catch_up(self) -> None:
        """Log the checkpoints that were committed or deleted by a process that was killed before it could log them."""
        last, self._logged = logged_checkpoints(self.run)
        steps = self.store.steps()
        if steps:
            self._forget_all_but(steps, steps[-1])
        for step in (step for step in steps if step > last):
            manifest = self.store.manifest(step)
            _, held_out = evaluated(manifest.stats)
            is_best = best_step(self.store) == step
            self._log_checkpoint(step, self.store.place(step), manifest.fingerprint, held_out, is_best)

    def _forget_all_but(self, steps: Collection[int], newest: int) -> None:
        """Log that checkpoints were deleted, so that tracking deletes them too. Those newer than `newest` were set
        aside, and will be made again."""
        gone = [step for step in sorted(self._logged) if step < newest and step not in steps]
        if gone and self.log.write(LogKind.FORGET, newest, {"steps": gone}):
            self._logged.difference_update(gone)

    def _log_checkpoint(
        self, step: int, place: str, fingerprint: str, held_out: Mapping[str, float], best: bool
    ) -> None:
        local = Path(place)
        self._logged.add(step)
        # Metrics of an evaluation at an earlier step are not metrics of these weights.
        evaluated_ms = self.log.evaluated_ms(step)
        entry = {
            "directory": str(local.resolve()) if local.is_dir() else place,
            "fingerprint": fingerprint,
            "metrics": {}
            if evaluated_ms is None
            else {f"{METRIC_PREFIXES[LogKind.HELD_OUT]}{name}": value for name, value in held_out.items()},
            "evaluated_ms": evaluated_ms,
            "best": best,
            "kept": sorted(self._logged),
        }
        self.log.write(LogKind.CHECKPOINT, step, entry)
