"""Checkpoints published under a model's name, as `models:/NAME@ALIAS` resolves them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import read_manifest
from pipeline.checkpoint.checkpoint import TrainerState, read_trainer_state
from pipeline.checkpoint.references import find_checkpoint
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.events import Event
from pipeline.run.model_versions import publish_checkpoint, published_versions
from pipeline.run.tracking import connect, knows_run, tracking_errors, tracking_uri

_NAME = re.compile(r"[\w.-]*[A-Za-z_][\w.-]*")
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
"""Aliases that MLflow keeps for itself."""


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
    place = found.place if "://" in found.place else str(Path(found.place).resolve())
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
    """What a model version is, and how it is used, for people who find it in MLflow."""
    objective = (state.identity.get("objective") or {}).get("kind", "")
    value = state.held_out.get(state.metric)
    measured = "" if value is None else f", held-out {state.metric} {value:.4g}"
    loaded = "`mlflow.transformers.load_model` or `mlflow.pyfunc.load_model`, and " if is_loadable else ""
    return (
        f"Checkpoint {reference} of a pre-training ({objective}, {state.tokens:,} tokens{measured})."
        f" Read it by {loaded}`cloze export` or `cloze finetune --from`."
    )


def list_published(name: str | None, runs_dir: Path) -> list[dict[str, Any]]:
    """As `published_versions`; raises TrackingUnreachableError."""
    uri = tracking_uri(runs_dir)
    with tracking_errors(uri):
        return published_versions(connect(uri), name)
