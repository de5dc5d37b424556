"""A tracking store that lost a run, or never had it, gets all of it again: the run's directory is the truth."""

from __future__ import annotations

from contextlib import suppress

from cluster.artefacts.errors import ConfigError, ReferenceNotFoundError
from pipeline.checkpoint.publishing import register
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.events import Event
from pipeline.run.log.mlflow_sink import send_from_start, send_log, want_status
from pipeline.run.state import is_held, state_of
from pipeline.run.tracking import knows_run, start_run, tracking_errors, tracking_uri

_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "lost": "FAILED", "preempted": "KILLED"}
"""The status in MLflow, by the state of a run; all others are RUNNING."""


def track_anew(run: RunDirectory, *, move: bool) -> str:
    """Send the whole log of a run, and the models that were published of it, to the tracking store in force; returns
    the store. What it has already is not doubled. In a store that does not know the run, a new MLflow run begins.

    Args:
        move: whether that may be another store than the run's own.

    Raises:
        ConfigError: it would be another store.
        StorageError: a new MLflow run would begin, and the run is being trained.
        TrackingUnreachableError: the store does not answer.
    """
    info, uri = run.info, tracking_uri(run.path.parent)
    if uri != info.tracking_uri and not move:
        raise ConfigError(
            f"{run.path.name} is tracked in {info.tracking_uri or 'no store'}; {uri} is in force here.",
            next_step="set MLFLOW_TRACKING_URI to the run's own store; or add --move, and the run is tracked in the"
            " other one from now on",
        )
    if uri == info.tracking_uri and knows_run(uri, info.run_id):
        send_from_start(run)
        # A run that is being trained has a process that sends.
        if not is_held(run):
            _send(run)
    else:
        with run.held("a new MLflow run for it"):
            _begin(run, uri)
            _send(run)
    _publish_again(run)
    return uri


def _begin(run: RunDirectory, uri: str) -> None:
    """Start an MLflow run for the run, with the facts that the first one had, or take up one with its id."""
    settings, info = run.settings(), run.info
    started = next(iter(run.events(Event.STARTED)), {})
    tags = {
        "cloze.tokens": ",".join(started.get("store_fingerprints") or ()),
        "cloze.commit": started.get("commit"),
        "cloze.submission_id": info.submission_id,
        "cloze.earlier_run_id": info.run_id,
    }
    tracked = start_run(
        settings.get("experiment") or info.name,
        settings.get("name") or info.name,
        config=settings,
        tags={name: value for name, value in tags.items() if value},
        runs_dir=run.path.parent,
        resume=info.run_id or None,
    )
    run.retrack(tracked.run_id, uri, tracked.experiment_id)
    send_from_start(run)


def _send(run: RunDirectory) -> None:
    info = run.info
    want_status(run, _STATUSES.get(state_of(run).name, "RUNNING"))
    with tracking_errors(info.tracking_uri):
        send_log(run, uri=info.tracking_uri, run_id=info.run_id, model_name=info.name)


def _publish_again(run: RunDirectory) -> None:
    """Register what was published of the run. An alias goes to the checkpoint that had it last, of whichever run."""
    runs_dir = run.path.parent
    told = sorted(
        (
            (event["time"], one.path.name, event)
            for one in list_runs(runs_dir)
            for event in one.events(Event.PUBLISHED)
        ),
        key=lambda each: each[:2],
    )
    holders = {(event["model"], event["alias"]): event for _, _, event in told}
    for _, name, event in told:
        if name == run.path.name:
            alias = event["alias"] if holders[event["model"], event["alias"]] is event else None
            with suppress(ReferenceNotFoundError):  # It was deleted by hand.
                register(f"{name}@{event['step']}", event["model"], alias, runs_dir)
