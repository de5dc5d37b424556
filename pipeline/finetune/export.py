"""Exports of checkpoints and of fine-tuned networks, which lie in directories of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from cluster.artefacts.confined import inside
from cluster.artefacts.errors import ExportError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, Manifest
from cluster.artefacts.storage import contents_of, open_artefact
from models.config import ElmoConfig, NetworkConfig
from pipeline.checkpoints.references import Weights
from pipeline.config.networks import NetworkChoice
from pipeline.exporting import exporting
from pipeline.exporting.exporting import Export, Source, is_artefact, refuse_option, write_export
from pipeline.finetune.results import TOKENIZER_FILE, Trial
from pipeline.finetune.scores import KIND, SCORES_FILE, Score
from pipeline.finetune.task import Tasks
from pipeline.finetune.tasks import TASKS

WRAPPER = "network."
"""Prefix of the tensor names of a ConditionalGenerator, which the encoder-decoder inside does not have."""


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
    source = load_finetuned(path, trial, tasks)
    if isinstance(source.config, ElmoConfig):
        raise ExportError(
            f"{path} holds a classifier on top of an ELMo, which no library can read; the biLM below it is the"
            " checkpoint's, unchanged.",
            next_step=f"export the checkpoint (cloze lineage {path} names it), or read the classifier with"
            " pipeline.finetune.export.load_finetuned",
        )
    return write_export(source, directory, family=family, verify=verify)


def load_finetuned(directory: Path, trial: str | None = None, tasks: Tasks = TASKS) -> Source:
    """Read a fine-tuned network from an artefact of scores.

    Its weights are float32 tensors in host memory: of a SequenceClassifier, DecoderClassifier, ElmoClassifier,
    SpanClassifier or SequenceToSequence.

    Args:
        directory: a committed scores artefact, as `OUT/NAME/CHECKPOINT`.
        trial: `TASK-INITIAL-SEED`; may be left out where there is only one.
        tasks: the kinds of tasks that the scores may be of.

    Raises:
        CorruptArtefactError: the directory holds no scores, or a file is damaged.
        ReferenceNotFoundError: its models were not kept, or there is no such training.
    """
    from safetensors.torch import load_file

    found = finetuned_network(directory, trial)
    with contents_of(found.weights_file):
        tensors = load_file(found.weights_file)
    with contents_of(directory / MANIFEST_NAME):
        return Source(
            state_dict={name.removeprefix(WRAPPER): tensor for name, tensor in tensors.items()},
            config=found.network,
            head=tasks[found.manifest.config["tasks"][found.trial.task]["kind"]].head_of(found.network),
            tokenizer_json=(directory / TOKENIZER_FILE).read_text(encoding="utf-8"),
            input=InputEntry(kind=KIND, uri=str(directory), fingerprint=found.manifest.fingerprint),
            labels=found.labels,
            trial=trial,
        )


@dataclass(frozen=True, slots=True)
class FinetunedNetwork:
    """A network among scores, whose bytes were verified."""

    trial: Trial
    network: NetworkConfig
    labels: tuple[str, ...]
    """Of its task, in the order of their numbers."""
    weights_file: Path
    manifest: Manifest


def finetuned_network(directory: Path, trial: str | None = None) -> FinetunedNetwork:
    """Find a fine-tuned network in an artefact of scores; its weights are not loaded.

    Arguments and errors: as `load_finetuned`.
    """
    manifest = open_artefact(directory, kind=KIND)
    with contents_of(directory / SCORES_FILE):
        content = orjson.loads((directory / SCORES_FILE).read_bytes())
        scores = {Trial.of(score).name: score for score in map(Score.model_validate, content["scores"])}
    chosen = Trial.of(scores[_choose(directory, manifest, scores, trial)])
    with contents_of(directory / MANIFEST_NAME):
        return FinetunedNetwork(
            trial=chosen,
            network=TypeAdapter(NetworkChoice).validate_python(manifest.config["model"]),
            labels=tuple(content["labels"][chosen.task]),
            weights_file=inside(directory, chosen.model_file),
            manifest=manifest,
        )


def _choose(directory: Path, manifest: Manifest, scores: Mapping[str, Score], trial: str | None) -> str:
    if not manifest.config.get("save_models"):
        raise ReferenceNotFoundError(
            f"{directory} holds scores, but the fine-tuned weights were not kept.",
            next_step="run the same `cloze finetune` again with save_models=true --replace",
        )
    if trial is None and len(scores) == 1:
        return next(iter(scores))
    if trial is None or trial not in scores:
        asked = "more than one training" if trial is None else f"no training {trial}"
        raise ReferenceNotFoundError(
            f"{directory} has {asked}; there are {', '.join(scores)}.",
            next_step=f"name one of them, such as {next(iter(scores))}",
        )
    return trial
