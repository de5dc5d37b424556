"""Fine-tuned networks, read back from the scores that they were kept with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter

from cluster.artefacts.confined import inside
from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.manifest import MANIFEST_NAME, Manifest
from cluster.artefacts.storage import contents_of, open_artefact
from models.config import NetworkConfig
from pipeline.config.networks import NetworkChoice
from pipeline.finetune.results import TOKENIZER_FILE, Trial
from pipeline.finetune.scores import KIND, SCORES_FILE, Score
from pipeline.finetune.task import Tasks
from pipeline.finetune.tasks import TASKS

if TYPE_CHECKING:
    from torch import Tensor

    from models.hf.family import Head

_WRAPPER = "network."
"""Prefix of the tensor names of a ConditionalGenerator, which the encoder-decoder inside does not have."""


@dataclass(frozen=True, slots=True)
class FinetunedModel:
    """One fine-tuned network."""

    state_dict: Mapping[str, Tensor]
    """float32 weights in host memory: of a SequenceClassifier, DecoderClassifier, ElmoClassifier, SpanClassifier or
    SequenceToSequence."""
    config: NetworkConfig
    head: Head
    labels: tuple[str, ...]
    """Names of the labels, in the order of their numbers; empty where nothing is classified."""
    tokenizer_path: Path
    trial: str
    """`TASK-INITIAL-SEED`."""
    score: Score


def load_finetuned(directory: Path, trial: str | None = None, tasks: Tasks = TASKS) -> FinetunedModel:
    """Read a fine-tuned network from an artefact of scores.

    Args:
        directory: a committed scores artefact, as `OUT/NAME/CHECKPOINT`.
        trial: `TASK-INITIAL-SEED`; may be left out where there is only one.
        tasks: the kinds of tasks that the scores may be of.

    Raises:
        CorruptArtefactError: the directory holds no scores, or a file is damaged.
        ReferenceNotFoundError: its models were not kept, or there is no such training.
    """
    from safetensors.torch import load_file

    manifest = open_artefact(directory, kind=KIND)
    with contents_of(directory / SCORES_FILE):
        content = orjson.loads((directory / SCORES_FILE).read_bytes())
        scores = {Trial.of(score).name: score for score in map(Score.model_validate, content["scores"])}
    chosen = _choose(directory, manifest, scores, trial)
    score = scores[chosen]
    file = inside(directory, Trial.of(score).model_file)
    with contents_of(file):
        tensors = load_file(file)
    with contents_of(directory / MANIFEST_NAME):
        return FinetunedModel(
            state_dict={name.removeprefix(_WRAPPER): tensor for name, tensor in tensors.items()},
            config=read_network(manifest.config["model"]),
            head=tasks[manifest.config["tasks"][score.task]["kind"]].head,
            labels=tuple(content["labels"][score.task]),
            tokenizer_path=directory / TOKENIZER_FILE,
            trial=chosen,
            score=score,
        )


def read_network(fields: Mapping[str, Any]) -> NetworkConfig:
    """The shape of a network, from the JSON object in a manifest."""
    return TypeAdapter(NetworkChoice).validate_python(fields)


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
