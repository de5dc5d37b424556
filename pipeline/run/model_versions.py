"""Checkpoints in MLflow: logged models, and versions of the run's registered model, that point to their directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.places import as_place

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHECKPOINT_TAG = "cloze.checkpoint"
"""Tag of logged models and model versions: the checkpoint's directory."""
STEP_TAG = "cloze.step"
MODEL_ID_TAG = "cloze.model_id"
"""Tag of model versions: the logged model. The registry keeps none for a model that lies outside of MLflow."""
BEST_ALIAS = "best"
PUBLISHED_TAG = "cloze.published"
"""Tag of versions that an operator made: `RUN@STEP`."""
FINGERPRINT_TAG = "cloze.fingerprint"


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

    Nothing is uploaded: both point to `directory`. Registering is idempotent, also when the first attempt broke off in
    the middle, or was carried out by a server that never answered. `best` moves the alias `best`; MLflow itself takes
    `latest` for the highest version.

    Args:
        directory: a path or a URI.
        metrics: measured on the checkpoint.
        time_ms: time of the evaluation in milliseconds since 1970; the same whenever it is sent.
    """
    tags = {**tags, CHECKPOINT_TAG: directory, STEP_TAG: str(step)}
    versions = _versions(client, name, step)
    if not versions:
        logged = _logged_model(client, run_id, step, metrics, tags, time_ms)
        created = _create_version(client, run_id, name, logged, _source(client, directory, logged), tags)
        # An earlier request that was given up may have been carried out in the meantime.
        versions = _versions(client, name, step) or [created]
    model_id = versions[0].tags[MODEL_ID_TAG]
    for surplus in versions[1:]:
        client.delete_model_version(name, surplus.version)
    for model in logged_models(client, run_id, step):
        if model.model_id != model_id:
            client.delete_logged_model(model.model_id)
    if best:
        client.set_registered_model_alias(name, BEST_ALIAS, versions[0].version)
    return model_id


def forget_checkpoint(client: MlflowClient, *, run_id: str, name: str, step: int) -> None:
    """Remove the model version and the logged model of a checkpoint that retention deleted, if there are any."""
    for registered in _versions(client, name, step):
        client.delete_model_version(name, registered.version)
    for model in logged_models(client, run_id, step):
        client.delete_logged_model(model.model_id)


def publish_checkpoint(
    client: MlflowClient,
    *,
    run_id: str,
    name: str,
    alias: str | None,
    reference: str,
    step: int,
    directory: str,
    fingerprint: str,
    description: str = "",
    flavour: Path | None = None,
) -> int:
    """Make a checkpoint a version of the registered model `name`, and give it the alias; returns the version's number.

    Publishing the same weights again moves the alias only, and with a flavour makes a version that has one.

    Args:
        run_id: the MLflow run that made it.
        reference: `RUN@STEP`.
        directory: a path or a URI.
        flavour: directory of an MLflow model of the checkpoint, which is uploaded.
    """
    tags = {
        CHECKPOINT_TAG: directory,
        STEP_TAG: str(step),
        FINGERPRINT_TAG: fingerprint,
        PUBLISHED_TAG: reference,
    }
    same = [one for one in _versions(client, name, step) if one.tags.get(FINGERPRINT_TAG) == fingerprint]
    if flavour is not None:
        model_id = _logged_model(client, run_id, step, {}, tags, 0)
        client.log_model_artifacts(model_id, str(flavour))
        # A store in a file would look for `models:/` in whichever store is in force.
        source = _source(client, client.get_logged_model(model_id).artifact_location, model_id)
        same = [one for one in same if one.source == source]
        version = same[0] if same else _create_version(client, run_id, name, model_id, source, tags)
    elif same:
        version = same[-1]
        client.set_model_version_tag(name, version.version, CHECKPOINT_TAG, directory)
    else:
        model_id = _logged_model(client, run_id, step, {}, tags, 0)
        version = _create_version(client, run_id, name, model_id, _source(client, directory, model_id), tags)
    client.update_model_version(name, version.version, description)
    if alias is not None:
        client.set_registered_model_alias(name, alias, version.version)
    return int(version.version)


def published_versions(client: MlflowClient, name: str | None) -> list[dict[str, Any]]:
    """The versions of one published model, or of all: model, version, aliases, reference, directory, fingerprint."""
    wanted = f"name = '{name}'" if name else ""
    found = [one for one in client.search_model_versions(wanted) if PUBLISHED_TAG in one.tags]
    aliases = {name: client.get_registered_model(name).aliases for name in {one.name for one in found}}
    return [
        {
            "model": one.name,
            "version": int(one.version),
            "aliases": sorted(
                alias for alias, number in aliases[one.name].items() if int(number) == int(one.version)
            ),
            "reference": one.tags[PUBLISHED_TAG],
            "directory": one.tags[CHECKPOINT_TAG],
            "fingerprint": one.tags[FINGERPRINT_TAG],
        }
        for one in sorted(found, key=lambda one: (one.name, int(one.version)))
    ]


def mark_best(client: MlflowClient, *, name: str, step: int | None) -> None:
    """Give the alias `best` to the version of a checkpoint's step, if there is one."""
    for registered in [] if step is None else _versions(client, name, step)[:1]:
        client.set_registered_model_alias(name, BEST_ALIAS, registered.version)


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
    """The `source` of a model version. A server refuses paths on its clients' machines: it gets the logged model
    instead, and the path in the tag `cloze.checkpoint`."""
    if not isinstance(place := as_place(directory), Path):
        return directory
    if client.tracking_uri.startswith(("http://", "https://", "databricks")):
        return f"models:/{model_id}"
    return place.resolve().as_uri()


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
