"""The log, the history and, through the log, MLflow, as training writes them: rank 0 writes, other ranks do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cluster.artefacts.errors import StorageError
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_to_mlflow
from pipeline.run.log.sender import Sender
from pipeline.run.log.wandb_sink import send_to_wandb

_CLOSE_TIMEOUT_S = 30.0


class Reporter:
    """Writes the log and the history of a run."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        since: int,
        is_reporter: bool,
        wandb: bool = False,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            since: the step that this attempt begins at.
            is_reporter: whether this process writes; one of a group does.
            is_lost: whether another group has taken the run over; from then on, nothing is logged.
            wandb: whether Weights & Biases gets a copy.
        """
        self._run = run
        self._log: RunLog | None = None
        self._senders: list[Sender] = []
        if not is_reporter:
            return
        info = run.info
        self._log = RunLog(run, since=since, is_lost=is_lost)
        if info.tracking_uri:
            self._senders.append(
                send_to_mlflow(run, uri=info.tracking_uri, run_id=info.run_id, model_name=info.name)
            )
        if wandb:
            self._senders.append(send_to_wandb(run))

    def history(self, event: Event, **details: Any) -> None:
        """Add to the run's history, which is for operators."""
        if self._log is not None:
            self._run.record_event(event, **details)

    def event(self, event: LogKind, step: int, **details: Any) -> None:
        """Add an event at a step to history and log, once: a repeated step does not write it again."""
        if self._log is not None and self._log.event(event, step, details):
            self._run.record_event(Event(event), step=step, **details)

    def write(self, kind: LogKind, step: int, values: Mapping[str, Any]) -> bool:
        """Log the numbers of a step, once for each kind and step; returns whether it did."""
        return self._log is not None and self._log.write(kind, step, values)

    def recorded(self, step: int) -> Mapping[str, Any] | None:
        """The numbers that an earlier attempt logged for a step, which this one repeats; None for a new step."""
        return None if self._log is None else self._log.recorded(step)

    def evaluated_ms(self, step: int) -> int | None:
        """When a step newer than the last checkpoint was evaluated, in milliseconds since 1970, as the log says; None
        for a step that was not."""
        return None if self._log is None else self._log.evaluated_ms(step)

    def sync(self) -> None:
        """Flush the log to the disk itself."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        """Send the rest of the log, for half a minute at most."""
        if self._log is not None:
            self._log.close()
        for sender in self._senders:
            if unsent := sender.close(_CLOSE_TIMEOUT_S):
                # A disk that is full must not hide why the run ended.
                with suppress(StorageError):
                    self._run.record_event(Event.TRACKING_BEHIND, message=unsent)
