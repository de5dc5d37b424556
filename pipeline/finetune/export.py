"""Exports of checkpoints and of fine-tuned networks, which lie in directories of scores."""

from __future__ import annotations

from pathlib import Path

from cluster.artefacts.errors import ExportError, MismatchError
from cluster.artefacts.manifest import InputEntry, read_manifest
from models.config import ElmoConfig
from pipeline.checkpoints.references import Weights
from pipeline.exporting import exporting
from pipeline.exporting.exporting import Export, Source, is_artefact, refuse_option, write_export
from pipeline.finetune.finished import load_finetuned
from pipeline.finetune.scores import KIND
from pipeline.finetune.task import Tasks
from pipeline.finetune.tasks import TASKS


def export(
    reference: str,
    directory: Path,
    *,
    runs_dir: Path,
    part: str | None = None,
    trial: str | None = None,
    family: str | None = None,
    weights: Weights = "model",
    verify: bool = True,
    tasks: Tasks = TASKS,
) -> Export:
    """Write a network as a directory that others read.

    Args:
        reference: any reference to a model, or a directory of scores whose models were kept.
        trial: `TASK-INITIAL-SEED` among the trainings of scores; None where there is only one.
        tasks: the kinds of tasks that scores may be of.

    Other arguments, and errors: see `pipeline.exporting.exporting.export`.
    """
    path = Path(reference)
    if not is_artefact(path, KIND):
        remedy = "leave it out, or name the scores of a fine-tuning"
        refuse_option("trial", trial, f"{reference} is no directory of scores", remedy)
        return exporting.export(
            reference,
            directory,
            runs_dir=runs_dir,
            part=part,
            family=family,
            weights=weights,
            verify=verify,
        )
    refuse_option("part", part, f"{path} holds scores, and their networks have no parts")
    if weights != "model":
        raise MismatchError(
            f"--ema has no meaning here: {path} holds scores, and fine-tuning keeps no average.",
            next_step="leave it out",
        )
    return write_export(_finetuned(path, trial, tasks), directory, family=family, verify=verify)


def _finetuned(path: Path, trial: str | None, tasks: Tasks) -> Source:
    tuned = load_finetuned(path, trial, tasks)
    if isinstance(tuned.config, ElmoConfig):
        raise ExportError(
            f"{path} holds a classifier on top of an ELMo, which no library can read; the biLM below it is the"
            " checkpoint's, unchanged.",
            next_step=f"export the checkpoint (cloze lineage {path} names it), or read the classifier with"
            " pipeline.finetune.finished.load_finetuned",
        )
    return Source(
        state_dict=tuned.state_dict,
        config=tuned.config,
        head=tuned.head,
        tokenizer_json=tuned.tokenizer_path.read_text(encoding="utf-8"),
        input=InputEntry(kind=KIND, uri=str(path), fingerprint=read_manifest(path).fingerprint),
        labels=tuned.labels,
        trial=trial,
    )
