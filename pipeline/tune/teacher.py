"""The fine-tuned network that a student learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.manifest import InputEntry
from cluster.artefacts.storage import contents_of
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.tune.finetuned import RANDOM, resolve_start

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.tune.forms.base import PreparedTask

FORMS = ("classification", "tags", "spans")
"""Forms of task whose networks learn from a teacher."""
_UNNAMED = "label_"
"""Begins the names that `transformers` gives to labels without names."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A fine-tuned network, whose labels are the task's."""

    pretrained: PretrainedModel
    columns: tuple[int, ...]
    """Per label of the task its index in the teacher; empty where nothing is classified."""

    @property
    def input(self) -> InputEntry:
        """The artefact that holds it, for lineages."""
        own = self.pretrained
        return own.origin or InputEntry(kind=CHECKPOINT_KIND, uri=own.reference, fingerprint=own.fingerprint)


def resolve_teacher(task: str, reference: str, runs_dir: Path, labels: Sequence[str]) -> Teacher:
    """The teacher of the task called `task`.

    Args:
        labels: of the task, in the order of their numbers.

    Raises:
        ReferenceNotFoundError, CorruptArtefactError, MismatchError: as `resolve_start`; and MismatchError for a network
            that was not fine-tuned, or on other labels.
    """
    found = resolve_start(reference, runs_dir)
    if found is None or found.step is not None:
        what = "stands for random weights" if reference == RANDOM else "is a checkpoint of pre-training"
        raise MismatchError(
            f"training.distill.teacher of the task {task}: {reference} {what}, and knows no answers.",
            next_step="name SCORES@TRAINING, which save_models=true kept, or a Hugging Face directory",
        )
    return Teacher(found, _columns(task, reference, _labels_of(found), labels) if labels else ())


def _columns(task: str, reference: str, theirs: Sequence[str], labels: Sequence[str]) -> tuple[int, ...]:
    """Per label of the task the index of the teacher's label of this name, whatever its case; in a network of
    `transformers` whose labels have no names, the same number.

    Raises:
        MismatchError: the teacher has other labels.
    """
    found, wanted = ([label.casefold() for label in names] for names in (theirs, labels))
    if sorted(found) == sorted(wanted):
        return tuple(found.index(label) for label in wanted)
    if len(found) == len(wanted) and all(label.startswith(_UNNAMED) for label in found):
        return tuple(range(len(wanted)))
    raise MismatchError(
        f"The teacher {reference} knows the labels {', '.join(theirs) or 'none'}, but the task {task} has"
        f" {', '.join(labels)}.",
        next_step="name a teacher that was fine-tuned on this task",
    )


def load_teacher(teacher: Teacher, task: PreparedTask, device: torch.device) -> nn.Module:
    """The teacher's network, frozen and in evaluation mode, with the task's order of labels.

    Args:
        task: the student's task, encoded for the teacher.

    Raises:
        MismatchError: the teacher has another head than the task needs.
    """
    import torch

    from models.hf.heads import POOLER, SCORES
    from models.weights import check_tensors

    with torch.device("meta"):
        model = task.build()
    tensors = {
        name: tensor
        for name, tensor in teacher.pretrained.state_dict().items()
        if not name.startswith(POOLER)
    }
    try:
        check_tensors(model.state_dict(), tensors, f"the teacher {teacher.pretrained.reference}")
    except ValueError as error:
        raise MismatchError(
            str(error),
            next_step="name a teacher that was fine-tuned on a task of this form and with its labels",
        ) from None
    if teacher.columns:
        scores = (each for name in SCORES for each in (name, name.replace("weight", "bias")))
        tensors |= {name: tensors[name][list(teacher.columns)] for name in scores if name in tensors}
    model.to_empty(device="cpu")
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False).to(device)


def _labels_of(pretrained: PretrainedModel) -> tuple[str, ...]:
    if pretrained.weights_file is not None:
        from pipeline.tune.finetuned import finetuned_network

        place, _, trial = pretrained.reference.rpartition("@")
        return finetuned_network(Path(place), trial).labels
    file = pretrained.directory / "config.json"
    with contents_of(file):
        named = orjson.loads(file.read_bytes()).get("id2label") or {}
        return tuple(str(named[number]) for number in sorted(named, key=int))
