"""References: the ways to name a model or a checkpoint, and resolving them.

`RUN`, `RUN@STEP`, `RUN@latest`, `RUN@best`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`, a checkpoint's directory
or URI, a Hugging Face directory, or a name on the Hugging Face Hub (`hub.py`). RUN is a run's name, its directory or
its MLflow run id; it wins over a name on the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.artefacts.errors import (
    CorruptArtefactError,
    CorruptCheckpointError,
    MismatchError,
    ReferenceNotFoundError,
)
from cluster.artefacts.manifest import read_manifest
from cluster.artefacts.places import Place, Uri, absolute, as_place
from cluster.artefacts.storage import is_committed
from cluster.copies import is_there
from pipeline.checkpoint import checkpoint as checkpoints
from pipeline.checkpoint.hub import HubName, fetch, hub_name
from pipeline.checkpoint.pretrained import WEIGHT_FILES, PretrainedModel, Weights, read_directory
from pipeline.checkpoint.store import best_step, fetch_checkpoint, store_of
from pipeline.run.directory import RUN_FILE, RunDirectory, find_run

_MODELS_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>.+)|/(?P<version>\d+|latest))$")


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """A checkpoint, wherever it is kept and whatever its directory is called."""

    place: Place
    step: int

    def fetch(self, files: Collection[str] | None = None) -> Path:
        """`fetch_checkpoint`, with the way out in the message.

        Raises:
            CorruptCheckpointError: the checkpoint's bytes changed.
        """
        try:
            return fetch_checkpoint(self.place, self.step, files)
        except CorruptArtefactError as error:
            kept_in = Path(absolute(self.place)).parent
            run = RunDirectory(kept_in.parent).typed if kept_in.name == "checkpoints" else kept_in.name
            raise CorruptCheckpointError(
                error.problem,
                kept=error.kept,
                next_step=f"use another checkpoint: cloze checkpoints {run} --verify",
            ) from None


def find_checkpoint(reference: str, runs_dir: Path) -> CheckpointReference:
    """The checkpoint of a reference (other than a Hugging Face directory); its bytes are not read.

    Raises:
        ReferenceNotFoundError: names what exists instead.
    """
    if matched := _MODELS_URI.match(reference):
        return _registered(reference, matched, runs_dir)
    directory = as_place(reference)
    if isinstance(directory, Uri):
        return _at_uri(directory)
    if (directory / checkpoints.TRAINER_FILE).is_file() or _was_checkpoint(directory):
        return _in_directory(directory)
    if directory.is_dir() and not RunDirectory(directory).exists and directory.name != reference:
        raise ReferenceNotFoundError(
            f"{directory} is no model: it has neither {checkpoints.TRAINER_FILE}, as a checkpoint, nor config.json, as"
            f" a Hugging Face directory, nor {RUN_FILE}, as a run.",
            next_step="name one of those, or a run: cloze runs",
        )
    name, _, selector = reference.partition("@")
    run = find_run(name, runs_dir)
    store = store_of(run)
    available = store.steps()
    selector = selector or "latest"
    if selector == "best":
        chosen = best_step(store)
    else:
        named = {str(step): step for step in available} | ({"latest": available[-1]} if available else {})
        chosen = named.get(selector)
    if chosen is None:
        steps = ", ".join(map(str, available)) or "none yet"
        raise ReferenceNotFoundError(
            f"{name} has no checkpoint {selector}; its checkpoints: {steps}.",
            next_step=f"cloze checkpoints {run.typed}",
        )
    return CheckpointReference(store.at(chosen), chosen)


def resolve_checkpoint(reference: str, runs_dir: Path) -> Path:
    """A local directory with the checkpoint of a reference, or with the copy of its small files where checkpoints are
    kept in an object store.

    Raises:
        ReferenceNotFoundError: names what exists instead.
    """
    found = find_checkpoint(reference, runs_dir)
    return found.place if isinstance(found.place, Path) else found.fetch(checkpoints.DESCRIPTION_FILES)


def resolve_model(reference: str, runs_dir: Path, weights: Weights = "model") -> PretrainedModel:
    """The verified model of a reference.

    Args:
        weights: `ema` takes the moving average of a run that keeps one.

    Raises:
        ReferenceNotFoundError: there is no such run, step, alias or directory.
        CorruptCheckpointError: the checkpoint's bytes changed.
        MismatchError: a Hugging Face directory holds what these networks cannot carry, or is damaged; or an average
            is wanted where there is none.
    """
    directory = Path(reference)
    if (directory / "config.json").is_file():
        if weights == "ema":
            raise _no_average(str(directory))
        return read_directory(directory)
    if (on_hub := _name_on_hub(reference, runs_dir)) is not None:
        if weights == "ema":
            raise _no_average(reference)
        directory = fetch(*on_hub)
        return read_directory(directory, f"{on_hub[0].repository}@{directory.name}")
    found = find_checkpoint(reference, runs_dir)
    wanted = {*checkpoints.DESCRIPTION_FILES, WEIGHT_FILES[weights]}
    path = found.fetch(wanted)
    manifest = read_manifest(path)
    if WEIGHT_FILES[weights] not in {entry.path for entry in manifest.files}:
        raise _no_average(str(found.place))
    state = checkpoints.read_trainer_state(path)
    return PretrainedModel(
        directory=path,
        reference=f"{state.run_name}@{state.step}",
        run_id=state.run_id,
        step=state.step,
        fingerprint=manifest.fingerprint,
        model=checkpoints.read_model_config(path),
        tokenizer_path=path / checkpoints.TOKENIZER_FILE,
        weights=weights,
    )


def _name_on_hub(reference: str, runs_dir: Path) -> tuple[HubName, str] | None:
    """The name that a reference may have on the Hub, because it is nothing here, and the message about what it is not;
    None where it is to be looked for here.
    """
    path = as_place(reference)
    if isinstance(path, Uri) or _MODELS_URI.match(reference):
        return None
    name = hub_name(reference)
    try:
        find_run(reference.partition("@")[0], runs_dir)
        return None
    except ReferenceNotFoundError as absent:
        if name is None and "/" in reference and not path.is_dir():
            what = f"{path} is a file, not a directory" if path.exists() else f"There is no directory {path}"
            raise ReferenceNotFoundError(
                f"{what}.",
                next_step=f"correct the path; or name a run (cloze runs --runs-dir {runs_dir}), or a model of the"
                " Hugging Face Hub, such as bert-base-uncased",
            ) from None
        if name is None or (path.is_dir() and len(path.parts) > 1):
            return None
        if len(path.parts) > 1 and path.resolve().is_relative_to(runs_dir.resolve()):
            raise absent from None  # A place in the directory of runs is for no server to know.
        if path.is_dir():
            if (path / checkpoints.TRAINER_FILE).is_file() or _was_checkpoint(path):
                return None
            return name, f"{absent.problem} The directory {path} has no config.json."
        if len(path.parts) > 1:
            return name, f"There is no directory {path}. {absent.problem}"
        return name, absent.problem


def _no_average(place: str) -> MismatchError:
    return MismatchError(
        f"{place} holds no moving average of the weights.",
        next_step="leave out --ema, or train with ema.decay set",
    )


def _at_uri(uri: Uri) -> CheckpointReference:
    try:
        step = checkpoints.step_of(Path(uri.name))
    except ValueError:
        raise ReferenceNotFoundError(
            f"{uri} is no checkpoint: those are named step-00000100.",
            next_step="name one of them, or a run; `cloze lineage` also takes an artefact, such as URI/tokens;"
            " `cloze pull URI DIRECTORY` copies an export to this machine",
        ) from None
    if not is_there(uri):
        raise ReferenceNotFoundError(f"{uri} holds no checkpoint.")
    return CheckpointReference(uri, step)


def _in_directory(directory: Path) -> CheckpointReference:
    """A checkpoint by its directory, which may have been copied under another name."""
    try:
        step = int(read_manifest(directory).config["step"])
    except (CorruptArtefactError, KeyError):
        step = -1  # `fetch` names its fault
    return CheckpointReference(directory, step)


def _was_checkpoint(directory: Path) -> bool:
    """Whether a manifest says so, though the file that identifies checkpoints is gone."""
    try:
        return is_committed(directory) and read_manifest(directory).kind == checkpoints.KIND
    except CorruptArtefactError:
        return False


def _registered(reference: str, matched: re.Match[str], runs_dir: Path) -> CheckpointReference:
    from mlflow.exceptions import MlflowException

    from pipeline.run.model_versions import CHECKPOINT_TAG
    from pipeline.run.tracking import connect, tracking_uri

    client = connect(tracking_uri(runs_dir))
    name, alias, number = matched["name"], matched["alias"], matched["version"]
    try:
        if "latest" in (alias, number):
            # MLflow reserves this alias for the highest version and resolves it only inside its own URIs.
            number = str(
                max(int(found.version) for found in client.search_model_versions(f"name = '{name}'"))
            )
            alias = None
        by_alias, by_number = client.get_model_version_by_alias, client.get_model_version
        version = by_alias(name, alias) if alias else by_number(name, number)
    except (MlflowException, ValueError) as error:
        raise ReferenceNotFoundError(
            f"The registry {tracking_uri(runs_dir)} has no {reference}: {error}",
            next_step=f"cloze runs --runs-dir {runs_dir}",
        ) from None
    directory = as_place(version.tags.get(CHECKPOINT_TAG) or str(version.source))
    if isinstance(directory, Uri):
        return _at_uri(directory)
    if not (directory / checkpoints.TRAINER_FILE).is_file():
        raise ReferenceNotFoundError(f"{reference} points to {directory}, where there is no checkpoint.")
    return _in_directory(directory)


def with_logged_model(pretrained: PretrainedModel, runs_dir: Path) -> PretrainedModel:
    """A model with the id of its logged model in MLflow, where tracking answers and knows it.

    Apart from `resolve_model`, because most verbs do not need it, and MLflow takes longer to import than they do.
    """
    if pretrained.model_id is not None or pretrained.step is None:
        return pretrained
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from pipeline.run.model_versions import MODEL_ID_TAG, find_version
    from pipeline.run.tracking import connect, tracking_uri

    name = pretrained.reference.rpartition("@")[0]
    try:
        version = find_version(connect(tracking_uri(runs_dir)), name, pretrained.step)
    except (MlflowException, SQLAlchemyError):
        return pretrained
    return replace(pretrained, model_id=version and version.tags[MODEL_ID_TAG])
