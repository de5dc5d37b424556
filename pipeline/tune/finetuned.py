"""Fine-tuned networks among scores, and the model that a fine-tuning starts from: one of them, any reference, or random
weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from cluster.artefacts.errors import ExportError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, Manifest
from cluster.artefacts.places import Uri, as_place
from cluster.artefacts.reading import inside
from cluster.artefacts.storage import contents_of
from cluster.copies import local_copy, manifest_at, place_of
from models.config import NetworkConfig
from pipeline.export.exporting import is_artefact
from pipeline.run.shared_settings import NetworkChoice
from pipeline.tasks import TASKS
from pipeline.tasks.task import TaskConfig
from pipeline.tune.scores import KIND, TOKENIZER_FILE, ScoresDirectory, Trial

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel

RANDOM = "random"
"""Stands for no checkpoint."""


def split_scores(reference: str) -> tuple[Path, str | None]:
    """The directory and the training of `SCORES@TRIAL`; all of `reference` and None where it names no single training.

    Directories of scores have the names of checkpoints, which hold an `@` themselves. Scores at a URI are copied to
    this machine, and the directory is the copy's.
    """
    whole, (directory, _, trial) = as_place(reference), reference.rpartition("@")
    if isinstance(whole, Uri):
        for place, named in ((whole, None), (as_place(directory), trial or None)):
            if isinstance(place, Uri) and (found := manifest_at(place)) is not None and found.kind == KIND:
                return local_copy(place), named
        return Path(reference), None
    if directory and not is_artefact(whole, KIND) and is_artefact(Path(directory), KIND):
        return Path(directory), trial or None
    return whole, None


@dataclass(frozen=True, slots=True)
class FinetunedNetwork:
    """A network among scores, whose bytes were verified."""

    trial: Trial
    network: NetworkConfig
    labels: tuple[str, ...]
    """Labels of its task, in the order of their numbers."""
    weights_file: Path
    manifest: Manifest
    asked: str | None
    """The name of the training, where one was asked for."""

    @property
    def settings(self) -> dict[str, Any]:
        """The task's part of the configuration, as the scores were made with."""
        return self.manifest.config["tasks"][self.trial.task]

    def task(self) -> TaskConfig:
        """The task, without its files."""
        return TASKS[self.settings["kind"]].without_files(self.settings)


def finetuned_network(directory: Path, trial: str | None = None) -> FinetunedNetwork:
    """Find a fine-tuned network in an artefact of scores; its weights are not loaded.

    Args:
        trial: `TASK-INITIAL-SEED`; may be left out where there is only one.

    Raises:
        CorruptArtefactError: the directory holds no scores, or a file is damaged.
        ReferenceNotFoundError: its models were not kept, or there is no such training.
        ExportError: it is no whole network, but a linear layer on frozen features.
    """
    opened = ScoresDirectory.open(directory)
    manifest, trials = opened.manifest, {score.trial.name: score.trial for score in opened.scores}
    if not manifest.config.get("save_models"):
        raise ReferenceNotFoundError(
            f"{directory} holds scores, but the fine-tuned weights were not kept.",
            next_step="run the same `cloze finetune` again with save_models=true --replace",
        )
    name = next(iter(trials)) if trial is None and len(trials) == 1 else trial
    if name is None or name not in trials:
        asked = "more than one training" if name is None else f"no training {name}"
        raise ReferenceNotFoundError(
            f"{directory} has {asked}; there are {', '.join(trials)}.",
            next_step=f"name one of them, such as {directory}@{next(iter(trials))}",
        )
    chosen = trials[name]
    if manifest.config["tasks"][chosen.task].get("training", {}).get("features") is not None:
        raise ExportError(
            f"{directory} holds a linear layer on frozen features, over the checkpoint as it was.",
            next_step=f"use the checkpoint itself: cloze lineage {directory} names it",
        )
    with contents_of(directory / MANIFEST_NAME):
        return FinetunedNetwork(
            trial=chosen,
            network=TypeAdapter(NetworkChoice).validate_python(manifest.config["model"]),
            labels=tuple(opened.labels[chosen.task]),
            weights_file=inside(directory, chosen.model_file),
            manifest=manifest,
            asked=trial,
        )


def resolve_start(reference: str, runs_dir: Path) -> PretrainedModel | None:
    """The model of a reference; None for random weights.

    A directory of scores whose models were kept is a start too: the network that was fine-tuned on one task is trained
    on the next (intermediate tasks; Liu et al. 2019, section 5.1). `SCORES@TRIAL` names one of several trainings.

    Raises:
        ReferenceNotFoundError, CorruptArtefactError, MismatchError: as `references.resolve_model`, or the scores have
            no such training, or kept no models.
    """
    from pipeline.checkpoint.references import PretrainedModel, resolve_model

    if reference == RANDOM:
        return None
    directory, trial = split_scores(reference)
    if not is_artefact(directory, KIND):
        return resolve_model(reference, runs_dir)
    from pipeline.tune.networks import WRAPPER, method_of

    found = finetuned_network(directory, trial)
    if method_of(found.weights_file) is not None:
        raise MismatchError(
            f"{directory} holds what training.peft trained, not a whole network.",
            next_step=f"cloze export {directory} DIR --trial {found.trial.name}, then start from DIR",
        )
    entries = {entry.path: entry.xxh3_128 for entry in found.manifest.files}
    return PretrainedModel(
        directory=directory,
        reference=f"{place_of(directory)}@{found.trial.name}",
        run_id=None,
        step=None,
        fingerprint=entries[found.weights_file.name],
        model=found.network,
        tokenizer_path=directory / TOKENIZER_FILE,
        weights_file=found.weights_file,
        wrapper=WRAPPER,
        origin=InputEntry(kind=KIND, uri=place_of(directory), fingerprint=found.manifest.fingerprint),
    )
