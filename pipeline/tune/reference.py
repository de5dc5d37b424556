"""The model that a fine-tuning starts from: any reference, a fine-tuned network among scores, or random weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.manifest import InputEntry
from cluster.copies import place_of
from pipeline.export.exporting import is_artefact
from pipeline.tune.scores import KIND, split_scores

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel

RANDOM = "random"
"""Stands for no checkpoint."""


def resolve_start(reference: str, runs_dir: Path) -> PretrainedModel | None:
    """The model of a reference; None for random weights.

    A directory of scores whose models were kept is a start too: the network that was fine-tuned on one task is trained
    on the next (intermediate tasks; Liu et al. 2019, section 5.1). `SCORES@TRIAL` names one of several trainings.

    Raises:
        ReferenceNotFoundError, CorruptArtefactError, MismatchError: as `references.resolve_model`, or the scores have
            no such training, or kept no models.
    """
    from pipeline.checkpoint.references import resolve_model

    if reference == RANDOM:
        return None
    directory, trial = split_scores(reference)
    if is_artefact(directory, KIND):
        return _finetuned(directory, trial)
    return resolve_model(reference, runs_dir)


def _finetuned(directory: Path, trial: str | None) -> PretrainedModel:
    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.tune.adapted import WRAPPER, method_of
    from pipeline.tune.export import finetuned_network
    from pipeline.tune.results import TOKENIZER_FILE

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
