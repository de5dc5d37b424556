"""Checkpoints published under a model's name, as `models:/NAME@ALIAS` resolves them.

A tracking store that lost a run, or never had it, gets all of it again: the run's directory is the truth.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ConfigError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import read_manifest
from cluster.artefacts.places import absolute
from pipeline.checkpoint.checkpoint import TrainerState, read_trainer_state
from pipeline.checkpoint.references import find_checkpoint
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.events import Event
from pipeline.run.log.mlflow_sink import send_from_start, send_log, want_status
from pipeline.run.model_versions import publish_checkpoint, published_versions
from pipeline.run.state import is_held, state_of
from pipeline.run.tracking import connect, knows_run, start_run, tracking_errors, tracking_uri

_NAME = re.compile(r"[\w.-]*[A-Za-z_][\w.-]*")
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
"""Aliases that MLflow keeps for itself."""
_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "lost": "FAILED", "preempted": "KILLED"}
"""The status in MLflow, by the state of a run; all others are RUNNING."""


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint under a model's name."""

    model: str
    version: int
    alias: str | None
    reference: str
    """`RUN@STEP`."""
    directory: str
    """Path or URI."""
    fingerprint: str


def publish(
    reference: str, name: str, alias: str | None, runs_dir: Path, *, flavour: Path | None = None
) -> Published:
    """Verify a checkpoint, make it a version of the registered model `name`, and move the alias to it.

    The run's history keeps that, and from then on the run's retention keeps the checkpoint.

    Args:
        flavour: directory of an MLflow model of the checkpoint, for those who load it with MLflow alone.

    Raises:
        As `register` does, and ConfigError: a model or an alias cannot have such a name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"A model cannot be named {name!r}: letters, digits, dots, hyphens and underscores, one letter at least."
        )
    if alias is not None and (not _NAME.fullmatch(alias) or _RESERVED.fullmatch(alias)):
        raise ConfigError(
            f"An alias cannot be {alias!r}: letters, digits, dots, hyphens and underscores, one letter at least, and"
            " neither `latest` nor a version such as v2."
        )
    published, run = register(reference, name, alias, runs_dir, flavour)
    if run is not None:
        run.record_event(
            Event.PUBLISHED,
            step=int(published.reference.rpartition("@")[2]),
            model=name,
            version=published.version,
            alias=alias,
            fingerprint=published.fingerprint,
        )
    return published


def register(
    reference: str, name: str, alias: str | None, runs_dir: Path, flavour: Path | None = None
) -> tuple[Published, RunDirectory | None]:
    """Verify and register a checkpoint; returns its run as well, where it lies in `runs_dir`.

    Raises:
        ReferenceNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: its bytes changed.
        MismatchError: the tracking store does not know the checkpoint's run.
        TrackingUnreachableError: the tracking store does not answer.
    """
    found = find_checkpoint(reference, runs_dir)
    path = found.fetch()
    state, fingerprint = read_trainer_state(path), read_manifest(path).fingerprint
    place = str(absolute(found.place))
    run = next((one for one in list_runs(runs_dir) if one.path.name == state.run_name), None)
    # The run may be tracked as another MLflow run by now.
    run_id, uri = state.run_id if run is None else run.info.run_id, tracking_uri(runs_dir)
    if not knows_run(uri, run_id):
        raise MismatchError(
            f"The tracking store {uri} does not know {state.run_name}.",
            next_step=f"set MLFLOW_TRACKING_URI to the run's store; or: cloze runs --runs-dir {runs_dir} replay"
            f" {state.run_name} --move",
        )
    reference = f"{state.run_name}@{state.step}"
    with tracking_errors(uri):
        version = publish_checkpoint(
            connect(uri),
            run_id=run_id,
            name=name,
            alias=alias,
            reference=reference,
            step=state.step,
            directory=place,
            fingerprint=fingerprint,
            description=_described(reference, state, flavour is not None),
            flavour=flavour,
        )
    return Published(name, version, alias, reference, place, fingerprint), run


def _described(reference: str, state: TrainerState, is_loadable: bool) -> str:
    """The description of a model version, for people who find it in MLflow."""
    objective = (state.identity.get("objective") or {}).get("kind", "")
    value = state.held_out.get(state.metric)
    measured = "" if value is None else f", held-out {state.metric} {value:.4g}"
    loaded = "`mlflow.transformers.load_model` or `mlflow.pyfunc.load_model`, and " if is_loadable else ""
    return (
        f"Checkpoint {reference} of a pre-training ({objective}, {state.tokens:,} tokens{measured})."
        f" Read it by {loaded}`cloze export` or `cloze finetune --from`."
    )


def list_published(name: str | None, runs_dir: Path) -> list[dict[str, Any]]:
    """List what `published_versions` finds; raises TrackingUnreachableError."""
    uri = tracking_uri(runs_dir)
    with tracking_errors(uri):
        return published_versions(connect(uri), name)


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
    want_status(run, _STATUSES.get(state_of(run).name, "RUNNING"))
    with tracking_errors(run.info.tracking_uri):
        send_log(run)


def _publish_again(run: RunDirectory) -> None:
    """Register what was published of the run. An alias goes to the checkpoint that had it last, of whichever run."""
    runs_dir = run.path.parent
    published = sorted(
        (
            (event["time"], one.path.name, event)
            for one in list_runs(runs_dir)
            for event in one.events(Event.PUBLISHED)
            if {"time", "model", "alias", "step"} <= event.keys()
        ),
        key=lambda each: each[:2],
    )
    holders = {(event["model"], event["alias"]): event for _, _, event in published}
    for _, name, event in published:
        if name == run.path.name:
            alias = event["alias"] if holders[event["model"], event["alias"]] is event else None
            with suppress(ReferenceNotFoundError):  # It was deleted by hand.
                register(f"{name}@{event['step']}", event["model"], alias, runs_dir)
