"""MLflow: its tracking store, and the runs in it.

SQLite under the runs directory unless `MLFLOW_TRACKING_URI` says otherwise.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from cluster.artefacts.credentials import (
    connection_uri,
    message_without_credentials,
    refused,
    split_tracking_credentials,
    without_credentials,
)
from cluster.artefacts.errors import ConfigError, TrackingUnreachableError
from cluster.artefacts.owner import lock
from cluster.artefacts.storage import storage_errors
from pipeline.config.loading import flatten
from pipeline.run.history import environment, source_tags, without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from pipeline.run.log.wandb_sink import WandbCopy

CREDENTIALS_HINT = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (of a database: MLFLOW_TRACKING_URI with its password)"
    " where this runs; a run stores no credentials"
)
MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Makes MLflow open an experiment on its runs instead of on its traces."""
_SQLITE = "sqlite:///"
_SERVED_AT = "http://127.0.0.1:5000"
"""Default address of `mlflow ui`."""
_NOT_THERE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's codes for a run that a store does not have, has as deleted, or could not have by its id."""
_MAX_PARAMS_PER_BATCH = 100
_MAX_PARAM_CHARACTERS = 6000
_MAX_TAG_CHARACTERS = 5000
SETTINGS_FILE = "config.json"
"""Artefact of a run: the settings in force."""
SETTING_TAG = "cloze.setting."
"""Begins the tags of settings that are not what the run's parameters say."""
_NOTE = "mlflow.note.content"
_CHANGED = "**Settings that changed** (the parameters are those of the start)"
"""Begins our part of a run's description."""

# Read by MLflow on import. A dead server must be noticed within seconds, not after minutes of retries.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# The output of a command is its answer, without MLflow's lines.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")


def tracking_uri(runs_dir: Path) -> str:
    """`MLFLOW_TRACKING_URI` without credentials, or SQLite in `runs_dir`. Files have absolute paths: workers and
    resumptions may run in another directory."""
    split_tracking_credentials()
    own = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", ""))
    path = own.removeprefix(_SQLITE) if own.startswith(_SQLITE) else ""
    if not own or (path and not path.startswith(("/", ":"))):
        return f"{_SQLITE}{Path(path or runs_dir / 'mlflow.db').resolve()}"
    return own


def connect(uri: str) -> MlflowClient:
    """A client for a tracking store, which is also its registry. Credentials come from the environment."""
    uri = connection_uri(uri)
    from mlflow import MlflowClient

    # After the import, which sets its own levels. Errors of a database are raised, and logged besides with tracebacks.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("mlflow.store.db", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """An MLflow run that is written to directly, for short work that may fail when tracking fails."""

    uri: str
    run_id: str
    copy: WandbCopy | None = None
    """Gets the same metrics."""
    experiment_id: str = ""

    def log_metrics(self, metrics: Mapping[str, float], step: int, model_id: str | None = None) -> None:
        """Log values of one step; `model_id` ties them to the logged model they were measured on."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [Metric(name, value, now, step, model_id=model_id) for name, value in metrics.items()]
        if self.copy is not None:
            self.copy.log(metrics, step)
        connect(self.uri).log_batch(self.run_id, metrics=batch)

    def finish(self, status: str = "FINISHED") -> None:
        """End the run as `FINISHED` or `FAILED`."""
        if self.copy is not None:
            self.copy.finish(failed=status != "FINISHED")
        connect(self.uri).set_terminated(self.run_id, status)


def end_run(uri: str, run_id: str, status: str) -> None:
    """End a run that is still marked as running."""
    client = connect(uri)
    if client.get_run(run_id).info.status == "RUNNING":
        client.set_terminated(run_id, status)


def tracking_message(error: Exception) -> str:
    """The message of an error of a tracking store, with what to do where the store wants credentials."""
    message = f"{type(error).__name__}: {message_without_credentials(str(error))}"
    return f"{message}\n{CREDENTIALS_HINT}" if refused(error) else message


def start_run(
    experiment: str,
    name: str,
    *,
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    runs_dir: Path = Path("runs"),
    resume: str | None = None,
) -> TrackedRun:
    """Create an MLflow run, and log its resolved configuration.

    Args:
        resume: id of the run that an earlier attempt at the same work started; it is continued if the store has it.

    Raises:
        TrackingUnreachableError: the tracking store does not answer; nothing was started.
        StorageError: `runs_dir` is not writable.
    """
    uri = tracking_uri(runs_dir)
    config = without_secrets(config)
    _require_writable(runs_dir)
    with tracking_errors(uri):
        if uri.startswith(f"{_SQLITE}/"):
            _make_tables(uri)
        client = connect(uri)
        from mlflow.entities import Param, RunTag

        if resume and knows_run(uri, resume):
            client.update_run(resume, status="RUNNING")
            return TrackedRun(uri, resume, experiment_id=client.get_run(resume).info.experiment_id)
        runs_dir.mkdir(parents=True, exist_ok=True)
        run = client.create_run(_experiment_id(client, uri, experiment, runs_dir), run_name=name)
        run_id = run.info.run_id
        flat = flatten(config)
        params = [Param(key, str(value)[:_MAX_PARAM_CHARACTERS]) for key, value in flat.items()]
        for first in range(0, len(params), _MAX_PARAMS_PER_BATCH):
            client.log_batch(run_id, params=params[first : first + _MAX_PARAMS_PER_BATCH])
        tags = {**source_tags(), **tags}
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        client.log_dict(run_id, dict(config), SETTINGS_FILE)
        client.log_dict(run_id, environment(), "environment.json")
    return TrackedRun(uri, run_id, experiment_id=run.info.experiment_id)


def _require_writable(runs_dir: Path) -> None:
    """Refuse a directory of runs that cannot be made or written to: a store in it would seem not to answer."""
    existing = next(place for place in (runs_dir.absolute(), *runs_dir.absolute().parents) if place.exists())
    with storage_errors(runs_dir):
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))


def log_changed_settings(client: MlflowClient, run_id: str, config: Mapping[str, Any]) -> None:
    """Show the settings in force where they are not those that the run began with: MLflow never changes parameters.

    They become tags, a table in the run's description, and the artefact `config.json`. Repeating it changes nothing.
    """
    from mlflow.entities import RunTag

    config, found = without_secrets(config), client.get_run(run_id).data
    now = {key: str(value)[:_MAX_PARAM_CHARACTERS] for key, value in flatten(config).items()}
    changed = {
        key: (found.params.get(key, "-"), now.get(key, "-"))
        for key in {**found.params, **now}
        if found.params.get(key) != now.get(key)
    }
    for tag in found.tags:
        if tag.startswith(SETTING_TAG) and tag.removeprefix(SETTING_TAG) not in changed:
            client.delete_tag(run_id, tag)
    rows = "\n".join(f"| {key} | {before} | {after} |" for key, (before, after) in changed.items())
    table = f"{_CHANGED}\n\n| setting | start | now |\n|---|---|---|\n{rows}" if changed else ""
    own = found.tags.get(_NOTE, "").partition(_CHANGED)[0].strip()
    tags = {f"{SETTING_TAG}{key}": after for key, (_, after) in changed.items()}
    tags[_NOTE] = f"{own}\n\n{table}".strip()
    entries = [RunTag(key, value[:_MAX_TAG_CHARACTERS]) for key, value in tags.items()]
    for first in range(0, len(entries), _MAX_PARAMS_PER_BATCH):
        client.log_batch(run_id, tags=entries[first : first + _MAX_PARAMS_PER_BATCH])
    client.log_dict(run_id, dict(config), SETTINGS_FILE)


def runs_page(uri: str, experiment_ids: Sequence[str]) -> str:
    """The address of the curves of experiments in MLflow's pages, and for a store without a server the command that
    serves it."""
    # MLflow opens pages of runs under its GenAI view otherwise.
    query = {"workflowType": "machine_learning", "compareRunsMode": "CHART"}
    path = f"experiments/{experiment_ids[0]}/runs"
    if len(experiment_ids) > 1:
        path = "compare-experiments/s"
        query["experiments"] = orjson.dumps([*experiment_ids]).decode()
    view = f"#/{path}?{urlencode(query, quote_via=quote)}"
    if uri.startswith(("http://", "https://")):
        return f"Open {uri.rstrip('/')}/{view}"
    return f"Type `mlflow ui --backend-store-uri {shlex.quote(uri)}`, then open {_SERVED_AT}/{view}"


def knows_run(uri: str, run_id: str) -> bool:
    """Whether a tracking store has a run that is not deleted.

    Raises:
        TrackingUnreachableError: it does not answer.
    """
    from mlflow.exceptions import MlflowException

    with tracking_errors(uri):
        try:
            return connect(uri).get_run(run_id).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code not in _NOT_THERE:
                raise
            return False


def _make_tables(uri: str) -> None:
    """Let MLflow make or upgrade the tables of an embedded store, one process at a time: two at once fail."""
    database = Path(uri.removeprefix(_SQLITE))
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f".{database.name}.lock").open("w") as held:
        lock(held.fileno())
        connect(uri).search_experiments(max_results=1)


@contextmanager
def tracking_errors(uri: str) -> Iterator[None]:
    """Inside the block, errors of a tracking store are TrackingUnreachableError."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    # ImportError: the driver of a database that is not installed.
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        raise TrackingUnreachableError(
            f"The tracking store {uri} does not answer: {error}",
            next_step=CREDENTIALS_HINT
            if refused(error)
            else "start the server, or unset MLFLOW_TRACKING_URI to track in SQLite",
        ) from error


def _experiment_id(client: MlflowClient, uri: str, name: str, runs_dir: Path) -> str:
    from mlflow.exceptions import MlflowException

    if existing := client.get_experiment_by_name(name):
        if existing.lifecycle_stage == "deleted":
            raise ConfigError(
                f"The MLflow experiment {name!r} was deleted.",
                next_step="set experiment=NAME of another one, or type:"
                f" MLFLOW_TRACKING_URI={uri} mlflow experiments restore -x {existing.experiment_id}",
            )
        # One that was made by hand lacks the tags.
        for tag, value in MODEL_TRAINING.items():
            if tag not in existing.tags:
                client.set_experiment_tag(existing.experiment_id, tag, value)
        return existing.experiment_id
    # A server knows where its artifacts go; the embedded store would choose the working directory.
    local = uri.startswith("sqlite:")
    location = (runs_dir.resolve() / "mlflow-artifacts").as_uri() if local else None
    try:
        return client.create_experiment(name, artifact_location=location, tags=MODEL_TRAINING)
    except MlflowException:
        if existing := client.get_experiment_by_name(name):
            return existing.experiment_id
        raise
