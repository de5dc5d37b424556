"""MLflow: runs, scores, and checkpoints as logged models that point to their directories.

SQLite under the runs directory unless `MLFLOW_TRACKING_URI` says otherwise.
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cluster.artefacts.credentials import (
    connection_uri,
    has_credentials,
    message_without_credentials,
    refused,
    split_tracking_credentials,
    without_credentials,
)
from cluster.artefacts.errors import TrackingUnreachableError
from cluster.artefacts.manifest import created_by
from pipeline.config.loading import flatten

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHECKPOINT_TAG = "cloze.checkpoint"
"""Tag of logged models and model versions: the checkpoint's directory."""
STEP_TAG = "cloze.step"
RESERVED_RUN_VARIABLE = "CLOZE_MLFLOW_RUN_ID"
"""Set for submitted jobs: the MLflow run that the submitter reserved, and that the job's first run adopts."""
MODEL_ID_TAG = "cloze.model_id"
"""Tag of model versions: the logged model. The registry keeps none for a model that lies outside of MLflow."""
CREDENTIALS_HINT = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (of a database: MLFLOW_TRACKING_URI with its password)"
    " where this runs; a run stores no credentials"
)
BEST_ALIAS = "best"
_SQLITE = "sqlite:///"
_MAX_PARAMS_PER_BATCH = 100
_MAX_PARAM_CHARACTERS = 6000
_PACKAGES = ("torch", "deepspeed", "ray", "mlflow", "numpy", "numba", "tokenizers", "triton", "flash-attn")
_STEERING_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "DS_")
"""Prefixes of environment variables that change what is computed, or how fast; none of them holds a secret."""

# Read by MLflow on import. A dead server must be noticed within seconds, not after minutes of retries.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# What a command prints is its answer, and a run that outlived its driver has nobody to print for.
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
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """An MLflow run that is written to directly; for work that is short enough to fail when tracking fails."""

    uri: str
    run_id: str

    def log_metrics(self, metrics: Mapping[str, float], step: int, model_id: str | None = None) -> None:
        """Log values of one step; `model_id` ties them to the logged model they were measured on."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [Metric(name, value, now, step, model_id=model_id) for name, value in metrics.items()]
        connect(self.uri).log_batch(self.run_id, metrics=batch)

    def log_dict(self, data: Mapping[str, Any], file_name: str) -> None:
        """Store JSON-like data as an artifact of the run."""
        connect(self.uri).log_dict(self.run_id, dict(data), file_name)

    def finish(self, status: str = "FINISHED") -> None:
        """End the run as `FINISHED` or `FAILED`."""
        connect(self.uri).set_terminated(self.run_id, status)


def told_of(error: Exception) -> str:
    """What a tracking store, or the way to it, says of an error; and what to do where it wants credentials."""
    told = f"{type(error).__name__}: {message_without_credentials(str(error))}"
    return f"{told}\n{CREDENTIALS_HINT}" if refused(error) else told


def start_run(
    experiment: str,
    name: str,
    *,
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    runs_dir: Path = Path("runs"),
) -> TrackedRun:
    """Create an MLflow run, or adopt the reserved one, and log its resolved configuration.

    Raises:
        TrackingUnreachableError: the tracking store does not answer, or lacks the reserved run; nothing was
            started.
    """
    uri = tracking_uri(runs_dir)
    runs_dir.mkdir(parents=True, exist_ok=True)
    from mlflow.entities import Param, RunTag

    # Settings are told to all who may look at the server.
    if has_credentials(told := orjson.dumps(dict(config), default=str).decode()):
        config = orjson.loads(without_credentials(told))

    with _tracking_errors(uri):
        client = connect(uri)
        # Taken out of the environment: a reserved run is adopted once.
        if reserved := os.environ.pop(RESERVED_RUN_VARIABLE, None):
            run_id = _adopt_run(client, uri, reserved, name)
        else:
            run = client.create_run(_experiment_id(client, uri, experiment, runs_dir), run_name=name)
            run_id = run.info.run_id
        flat = flatten(config)
        params = [Param(key, str(value)[:_MAX_PARAM_CHARACTERS]) for key, value in flat.items()]
        for first in range(0, len(params), _MAX_PARAMS_PER_BATCH):
            client.log_batch(run_id, params=params[first : first + _MAX_PARAMS_PER_BATCH])
        tags = {**source_tags(), **tags}
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        client.log_dict(run_id, dict(config), "config.json")
        client.log_dict(run_id, environment(), "environment.json")
    return TrackedRun(uri, run_id)


def source_tags() -> dict[str, str]:
    """Which code made a run: cloze's version and commit (`+dirty` when it was changed), under MLflow's names too.

    The commit is that of cloze, not of the directory that the user works in: with the resolved configuration and the
    fingerprints of the data it is what determines the run.
    """
    made = created_by()
    tags = {
        "mlflow.source.name": "cloze",
        "mlflow.source.type": "LOCAL",
        "cloze.version": made.version,
        "cloze.host": made.host,
    }
    with suppress(OSError, KeyError):  # In a container, the user may have no name.
        tags["mlflow.user"] = getpass.getuser()
    if made.commit:
        tags |= {"mlflow.source.git.commit": made.commit, "cloze.commit": made.commit}
    return tags


def environment() -> dict[str, Any]:
    """What a run is started on: versions of what computes it, the machine, and the variables that steer it."""
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": versions,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_STEERING_VARIABLES)
        },
    }


def reserve_run(experiment: str, name: str, *, runs_dir: Path) -> TrackedRun:
    """Create an MLflow run that waits as `SCHEDULED`, so that its id is known before the job that adopts it.

    Raises:
        TrackingUnreachableError: the tracking store does not answer.
    """
    uri = tracking_uri(runs_dir)
    runs_dir.mkdir(parents=True, exist_ok=True)
    with _tracking_errors(uri):
        client = connect(uri)
        run = client.create_run(_experiment_id(client, uri, experiment, runs_dir), run_name=name)
        client.update_run(run.info.run_id, status="SCHEDULED")
    return TrackedRun(uri, run.info.run_id)


def end_run(run_id: str, status: str, *, runs_dir: Path, only_from: tuple[str, ...]) -> bool:
    """Give a run whose job is gone its last status, if it still has one of `only_from`; says whether it did.

    Raises:
        TrackingUnreachableError: the tracking store does not answer, or does not have the run.
    """
    uri = tracking_uri(runs_dir)
    with _tracking_errors(uri):
        client = connect(uri)
        if client.get_run(run_id).info.status not in only_from:
            return False
        client.set_terminated(run_id, status)
    return True


def _adopt_run(client: MlflowClient, uri: str, run_id: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.update_run(run_id, status="RUNNING", name=name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise TrackingUnreachableError(
            f"The MLflow run {run_id} that was reserved for this job is not in {uri}.",
            next_step="let job and submitter see one store: MLFLOW_TRACKING_URI, or a shared runs directory",
        ) from None
    return run_id


@contextmanager
def _tracking_errors(uri: str) -> Iterator[None]:
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


def register_checkpoint(
    client: MlflowClient,
    *,
    run_id: str,
    name: str,
    step: int,
    directory: str,
    metrics: Mapping[str, float],
    best: bool,
    tags: Mapping[str, str],
    time_ms: int,
) -> str:
    """Make a checkpoint a logged model and a version of the registered model `name`; returns the model id.

    Nothing is uploaded: both point to `directory`. Doing it twice is the same as doing it once, also when the first
    time broke off in the middle, or was carried out by a server that never answered. `best` moves the alias of that
    name; MLflow itself takes `latest` for the highest version.

    Args:
        directory: a path or a URI.
        metrics: what was measured on the checkpoint.
        time_ms: when that was, in milliseconds since 1970; the same whenever it is sent.
    """
    tags = {**tags, CHECKPOINT_TAG: directory, STEP_TAG: str(step)}
    versions = _versions(client, name, step)
    if versions:
        model_id = versions[0].tags[MODEL_ID_TAG]
    else:
        model_id = _logged_model(client, run_id, step, metrics, tags, time_ms)
        source = _source(client, directory, model_id)
        versions = [_create_version(client, run_id, name, model_id, source, tags)]
    for surplus in versions[1:]:
        client.delete_model_version(name, surplus.version)
    for model in logged_models(client, run_id, step):
        if model.model_id != model_id:
            client.delete_logged_model(model.model_id)
    if best:
        client.set_registered_model_alias(name, BEST_ALIAS, versions[0].version)
    return model_id


def forget_checkpoint(client: MlflowClient, *, run_id: str, name: str, step: int) -> None:
    """Remove the model version and the logged model of a checkpoint that retention deleted; none is no error."""
    for registered in _versions(client, name, step):
        client.delete_model_version(name, registered.version)
    for model in logged_models(client, run_id, step):
        client.delete_logged_model(model.model_id)


def find_version(client: MlflowClient, name: str, step: int) -> Any:
    """The registered version of a checkpoint's step, or None."""
    return next(iter(_versions(client, name, step)), None)


def logged_models(client: MlflowClient, run_id: str, step: int) -> list[Any]:
    """The logged models of a run's checkpoint, the oldest first; more than one where a request was repeated."""
    experiment = client.get_run(run_id).info.experiment_id
    found = client.search_logged_models(
        [experiment], filter_string=f"source_run_id = '{run_id}' AND tags.`{STEP_TAG}` = '{step}'"
    )
    return sorted(found, key=lambda model: (model.creation_timestamp, model.model_id))


def _versions(client: MlflowClient, name: str, step: int) -> list[Any]:
    """The registered versions of a checkpoint's step, the lowest first."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.search_model_versions(f"name = '{name}' and tag.`{STEP_TAG}` = '{step}'")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return []
        raise
    return sorted(found, key=lambda version: int(version.version))


def _logged_model(
    client: MlflowClient,
    run_id: str,
    step: int,
    metrics: Mapping[str, float],
    tags: dict[str, str],
    time_ms: int,
) -> str:
    """The id of the step's logged model, which may be there already, whole or not."""
    from mlflow.entities import Metric

    model = next(iter(logged_models(client, run_id, step)), None)
    if model is None:
        model = client.create_logged_model(
            experiment_id=client.get_run(run_id).info.experiment_id,
            name=f"step-{step:08d}",
            source_run_id=run_id,
            tags=tags,
            model_type="checkpoint",
        )
    if str(model.status) != "READY":
        client.finalize_logged_model(model.model_id, "READY")
    if metrics:
        batch = [Metric(key, value, time_ms, step, model_id=model.model_id) for key, value in metrics.items()]
        client.log_batch(run_id, metrics=batch)
    return model.model_id


def _source(client: MlflowClient, directory: str, model_id: str) -> str:
    """Where a version's files are said to be. A server takes no path of its clients' machines: the logged model
    stands for it there, and the tag `cloze.checkpoint` says the path."""
    if "://" in directory:
        return directory
    if client.tracking_uri.startswith(("http://", "https://", "databricks")):
        return f"models:/{model_id}"
    return Path(directory).resolve().as_uri()


def _create_version(
    client: MlflowClient, run_id: str, name: str, model_id: str, source: str, tags: dict[str, str]
) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(
        name, source=source, run_id=run_id, model_id=model_id, tags={**tags, MODEL_ID_TAG: model_id}
    )


def _experiment_id(client: MlflowClient, uri: str, name: str, runs_dir: Path) -> str:
    from mlflow.exceptions import MlflowException

    if existing := client.get_experiment_by_name(name):
        return existing.experiment_id
    # A server knows where its artifacts go; the embedded store would choose the working directory.
    local = uri.startswith("sqlite:")
    location = (runs_dir.resolve() / "mlflow-artifacts").as_uri() if local else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:
        if existing := client.get_experiment_by_name(name):
            return existing.experiment_id
        raise
