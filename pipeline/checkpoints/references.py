"""References: the ways to name a model or a checkpoint, and resolving them.

`RUN`, `RUN@STEP`, `RUN@latest`, `RUN@best`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`, a checkpoint's directory
or URI, or a Hugging Face directory. RUN is a run's name, its directory or its MLflow run id.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from cluster.artefacts.errors import (
    CorruptArtefactError,
    CorruptCheckpointError,
    MismatchError,
    ReferenceNotFoundError,
)
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, hash_file, read_manifest
from cluster.artefacts.storage import contents_of, is_committed, open_artefact
from pipeline.checkpoints import checkpoint as checkpoints
from pipeline.checkpoints.retention import best_step
from pipeline.checkpoints.store import (
    CheckpointStore,
    open_checkpoint,
    open_store,
    store_of,
)
from pipeline.runs.directory import RUN_FILE, RunDirectory, find_run

if TYPE_CHECKING:
    from torch import Tensor

    from models.config import NetworkConfig
    from models.hf.heads import Head

Weights = Literal["model", "ema"]
"""The weights as training left them, or their moving average."""
WEIGHT_FILES = {"model": checkpoints.MODEL_FILE, "ema": checkpoints.EMA_FILE}
_MODELS_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>.+)|/(?P<version>\d+|latest))$")


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """Weights with their network, their tokenizer and their place in the lineage."""

    directory: Path
    reference: str
    """Canonical: `RUN@STEP` for a run's checkpoint, otherwise the directory."""
    run_id: str | None
    """MLflow run that made it; None for a Hugging Face directory."""
    model_id: str | None
    """MLflow logged model; None when tracking does not know it."""
    step: int | None
    fingerprint: str
    model: NetworkConfig
    tokenizer_path: Path
    head: Head | None = None
    """The head that a Hugging Face directory names; None for a checkpoint, whose tensors tell."""
    weights: Weights = "model"
    weights_file: Path | None = None
    """The file of a fine-tuned network; None where `directory` tells."""
    wrapper: str = ""
    """Prefix of the names in `weights_file` that the network itself does not have."""
    origin: InputEntry | None = None
    """The artefact that holds `weights_file`, for lineages."""

    def state_dict(self) -> dict[str, Tensor]:
        """float32 weights by the names of cloze's networks."""
        from safetensors.torch import load_file

        if self.weights_file is not None:
            with contents_of(self.weights_file):
                found = load_file(self.weights_file)
            return {name.removeprefix(self.wrapper): tensor for name, tensor in found.items()}
        if self.step is not None:
            file = self.directory / WEIGHT_FILES[self.weights]
            with contents_of(file, CorruptCheckpointError):
                return load_file(file)
        from models.hf.directory import load_hf_directory

        return load_hf_directory(self.directory)[0]


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """A checkpoint, wherever it is kept."""

    store: CheckpointStore
    step: int
    directory: Path | None = None
    """Of a checkpoint that was named by its directory, whatever that is called."""

    @property
    def place(self) -> str:
        """Path or URI."""
        return self.store.place(self.step) if self.directory is None else str(self.directory)

    def fetch(self, files: Collection[str] | None = None) -> Path:
        """`CheckpointStore.fetch`, with the way out in the message.

        Raises:
            CorruptCheckpointError: the checkpoint's bytes changed.
        """
        try:
            if self.directory is not None:
                return open_checkpoint(self.directory, files)
            return self.store.fetch(self.step, files)
        except CorruptArtefactError as error:
            kept_in = Path(self.place).parent
            run = RunDirectory(kept_in.parent).typed if kept_in.name == "checkpoints" else kept_in.name
            raise CorruptCheckpointError(
                error.problem,
                kept=error.kept,
                next_step=f"use another checkpoint: cloze checkpoints {run} --verify",
            ) from None


def find_checkpoint(reference: str, runs_dir: Path) -> CheckpointReference:
    """The checkpoint that a reference (other than a Hugging Face directory) stands for; its bytes are not read.

    Raises:
        ReferenceNotFoundError: names what exists instead.
    """
    if matched := _MODELS_URI.match(reference):
        return _registered(reference, matched, runs_dir)
    if "://" in reference:
        return _at_uri(reference)
    directory = Path(reference)
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
    chosen = _select(selector or "latest", available, store)
    if chosen is None:
        steps = ", ".join(map(str, available)) or "none yet"
        raise ReferenceNotFoundError(
            f"{name} has no checkpoint {selector or 'latest'}; its checkpoints: {steps}.",
            next_step=f"cloze checkpoints {run.typed}",
        )
    return CheckpointReference(store, chosen)


def resolve_checkpoint(reference: str, runs_dir: Path) -> Path:
    """A local directory with the checkpoint that a reference stands for, or with the copy of its small files where
    checkpoints are kept in an object store.

    Raises:
        ReferenceNotFoundError: names what exists instead.
    """
    found = find_checkpoint(reference, runs_dir)
    if not found.store.copies:
        return found.directory or found.store.local(found.step)
    return found.fetch(checkpoints.DESCRIPTION_FILES)


def resolve_model(reference: str, runs_dir: Path, weights: Weights = "model") -> PretrainedModel:
    """The model that a reference stands for, verified.

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
        return _hugging_face(directory)
    found = find_checkpoint(reference, runs_dir)
    wanted = {*checkpoints.DESCRIPTION_FILES, WEIGHT_FILES[weights]}
    path = found.fetch(wanted)
    manifest = read_manifest(path)
    if WEIGHT_FILES[weights] not in {entry.path for entry in manifest.files}:
        raise _no_average(found.place)
    state = checkpoints.read_trainer_state(path)
    return PretrainedModel(
        directory=path,
        reference=f"{state.run_name}@{state.step}",
        run_id=state.run_id,
        model_id=_model_id(state.run_name, state.step, runs_dir),
        step=state.step,
        fingerprint=manifest.fingerprint,
        model=checkpoints.read_model_config(path),
        tokenizer_path=path / checkpoints.TOKENIZER_FILE,
        weights=weights,
    )


def _no_average(place: str) -> MismatchError:
    return MismatchError(
        f"{place} holds no moving average of the weights.",
        next_step="leave out --ema, or train with ema.decay set",
    )


def _at_uri(uri: str) -> CheckpointReference:
    place, _, name = uri.rstrip("/").rpartition("/")
    try:
        step = checkpoints.step_of(Path(name))
    except ValueError:
        raise ReferenceNotFoundError(
            f"{uri} is no checkpoint: those are named step-00000100.", next_step="name one of them, or a run"
        ) from None
    base, _, run = place.rpartition("/")
    store = open_store(base, run)
    if step not in store.steps():
        raise ReferenceNotFoundError(f"{uri} holds no checkpoint.")
    return CheckpointReference(store, step)


def _in_directory(directory: Path) -> CheckpointReference:
    """A checkpoint by its directory, which may have been copied under another name."""
    try:
        step = int(read_manifest(directory).config["step"])
    except (CorruptArtefactError, KeyError):
        step = -1  # `fetch` names its fault
    return CheckpointReference(CheckpointStore(directory.parent), step, directory)


def _was_checkpoint(directory: Path) -> bool:
    """Whether a manifest says so, though the file that tells checkpoints apart is gone."""
    try:
        return is_committed(directory) and read_manifest(directory).kind == checkpoints.KIND
    except CorruptArtefactError:
        return False


def _select(selector: str, available: list[int], store: CheckpointStore) -> int | None:
    if selector == "latest":
        return available[-1] if available else None
    if selector == "best":
        return best_step(store)
    return next((step for step in available if str(step) == selector), None)


def _registered(reference: str, matched: re.Match[str], runs_dir: Path) -> CheckpointReference:
    from mlflow.exceptions import MlflowException

    from pipeline.runs.model_versions import CHECKPOINT_TAG
    from pipeline.runs.tracking import connect, tracking_uri

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
    place = version.tags.get(CHECKPOINT_TAG) or str(version.source)
    if "://" in place and not place.startswith("file://"):
        return _at_uri(place)
    directory = Path(place.removeprefix("file://"))
    if not (directory / checkpoints.TRAINER_FILE).is_file():
        raise ReferenceNotFoundError(f"{reference} points to {directory}, where there is no checkpoint.")
    return _in_directory(directory)


def _model_id(name: str, step: int, runs_dir: Path) -> str | None:
    """The logged model of a checkpoint, when tracking answers and knows it."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from pipeline.runs.model_versions import MODEL_ID_TAG, find_version
    from pipeline.runs.tracking import connect, tracking_uri

    try:
        version = find_version(connect(tracking_uri(runs_dir)), name, step)
    except (MlflowException, SQLAlchemyError):
        return None
    return None if version is None else version.tags[MODEL_ID_TAG]


def _is_export(directory: Path) -> bool:
    """Whether `manifest.json` there is one of ours, damaged or not: other tools use this name, too."""
    if not is_committed(directory):
        return False
    try:
        contents = orjson.loads((directory / MANIFEST_NAME).read_bytes())
    except ValueError:
        return True
    return isinstance(contents, dict) and bool({"fingerprint", "created_by", "checksum"} & contents.keys())


def _hugging_face(directory: Path) -> PretrainedModel:
    from models.hf.directory import read_hf_directory, weight_files

    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise ReferenceNotFoundError(
            f"{directory} has no tokenizer.json.",
            next_step="save its fast tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )
    if _is_export(directory):
        open_artefact(directory, repair="export it again, or fetch the directory again")
    try:
        imported = read_hf_directory(directory)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        # config.json and tokenizer.json may say anything at all.
        raise MismatchError(
            f"{directory} cannot be read as a model: {error}",
            next_step="name a directory that `save_pretrained` or `cloze export` wrote",
        ) from None
    return PretrainedModel(
        directory=directory,
        reference=str(directory),
        run_id=None,
        model_id=None,
        step=None,
        fingerprint="+".join(hash_file(file)[0] for file in weight_files(directory)),
        model=imported.config,
        tokenizer_path=tokenizer,
        head=imported.head,
    )
