"""A task whose loss also asks a teacher (Hinton et al. 2015, section 2; Sanh et al. 2019, section 3): the fine-tuned
network that a student learns from, the loss, and both side by side: parameters, size, speed and score."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor, nn

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.storage import contents_of
from models.config import TransformerConfig
from models.distillation import divergence, hidden_distance
from models.features import recorded_layers
from models.hf.heads import POOLER, SCORES
from models.weights import check_tensors, count_parameters, with_prefix
from pipeline.checkpoint.references import PretrainedModel
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.finetuned import RANDOM, finetuned_network, resolve_start
from pipeline.tune.forms.base import (
    Metrics,
    PaddedBatch,
    PreparedTask,
    TaskContext,
    unwrapped,
)
from pipeline.tune.scores import Distillation

_UNNAMED = "label_"
"""Begins the names that `transformers` gives to labels without names."""
_INPUTS, _TARGETS = "teacher.inputs.", "teacher.targets."
"""Prefixes of the teacher's tensors among the targets of a batch."""
TIMED_ROWS = 256
"""Evaluation rows that are timed at most."""
ROUNDS = 3
"""Times that each network reads them, by turns; the median counts."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A fine-tuned network, whose labels are the task's."""

    pretrained: PretrainedModel
    columns: tuple[int, ...]
    """Per label of the task its index in the teacher; empty where nothing is classified."""


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
        # The directory is a copy of scores at a URI.
        trial = pretrained.reference.rpartition("@")[2]
        return finetuned_network(pretrained.directory, trial).labels
    file = pretrained.directory / "config.json"
    with contents_of(file):
        named = orjson.loads(file.read_bytes()).get("id2label") or {}
        return tuple(str(named[number]) for number in sorted(named, key=int))


class DistilledTask:
    """A task, encoded for a student and for its teacher, which reads the same examples with its own tokenizer."""

    def __init__(
        self, form: Callable[[TaskContext], Any], context: TaskContext, teacher: Teacher, device: torch.device
    ) -> None:
        """
        Raises:
            MismatchError: teacher and task, or teacher and student, do not fit together.
        """
        settings, pretrained = context.settings.distill, teacher.pretrained
        assert settings is not None, "only tasks with a teacher are distilled"
        self.settings = settings
        plain = context.settings.model_copy(update={"features": None, "distill": None, "peft": None})
        tokenizer = TextTokenizer(pretrained.tokenizer_path)
        self.own: PreparedTask = form(context)
        """The student's."""
        self.taught: PreparedTask = form(
            dataclasses.replace(context, settings=plain, network=pretrained.model, tokenizer=tokenizer)
        )
        """The teacher's."""
        own, theirs = self.own.train, self.taught.train
        # Windows of passages are rows of tokens, and must be the same for both.
        if hasattr(own, "begin") and not own.input_ids.equals(theirs.input_ids):
            raise MismatchError(
                f"The teacher {pretrained.reference} reads passages in other tokens than the student.",
                next_step="take a student with the teacher's tokenizer and kind of network",
            )
        if settings.hidden_weight:
            _check_hidden(context, teacher, own, theirs)
        self.fingerprint = pretrained.fingerprint
        """The teacher's."""
        self.teacher = load_teacher(teacher, self.taught, device)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the student's."""
        return getattr(self.own, name)

    def batch(self, part: Any, rows: np.ndarray) -> PaddedBatch:
        """The student's rows; of rows to train on, with what the teacher reads of them."""
        batch = self.own.batch(part, rows)
        if part is not self.own.train:
            return batch
        taught = self.taught.batch(self.taught.train, rows)
        theirs = {_INPUTS + name: tensor for name, tensor in taught.inputs.items()}
        theirs |= {_TARGETS + name: tensor for name, tensor in taught.targets.items()}
        return PaddedBatch(batch.inputs, batch.targets | theirs)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """(1 - soft_share) of the loss of right answers, soft_share of the divergence from the teacher's probabilities,
        of numbers of the squared distance, and the distance of hidden states."""
        share, weight = self.settings.soft_share, self.settings.hidden_weight
        taught = PaddedBatch(with_prefix(batch.targets, _INPUTS), with_prefix(batch.targets, _TARGETS))
        with recorded_layers(unwrapped(model)) if weight else nullcontext([]) as states:
            logits = self.own.logits(model, batch)
        with torch.no_grad(), recorded_layers(self.teacher) if weight else nullcontext([]) as wanted_states:
            wanted, present = self.taught.comparable(self.taught.logits(self.teacher, taught), taught)
        mine, weights = self.own.comparable(logits, batch)
        if getattr(self.own.config, "regression", False):
            each = (mine - wanted).square().sum(-1)
        else:
            each = divergence(mine, wanted, self.settings.temperature).sum(-1)
        # The teacher may have cut other words than the student.
        soft = (each * weights * (present > 0)).sum()
        loss = (1 - share) * self.own.loss_of(model, logits, batch) + share * soft
        if weight:
            read = batch.inputs["attention_mask"].bool()
            # An update divides by the number of its predictions.
            loss = loss + weight * hidden_distance(states, wanted_states, read) * weights.sum()
        return loss

    def compare(self, student: nn.Module) -> tuple[Distillation, Metrics, dict[str, float]]:
        """Measure both networks where they are, in one process.

        Returns:
            Their sizes, the teacher's metrics on the evaluation examples, and the evaluation rows that `teacher` and
            `student` read per second.
        """

        def num_bytes(model: nn.Module) -> int:
            return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

        sizes = Distillation(
            teacher=self.fingerprint,
            teacher_parameters=count_parameters(self.teacher),
            student_parameters=count_parameters(student),
            teacher_bytes=num_bytes(self.teacher),
            student_bytes=num_bytes(student),
        )
        outputs = _outputs(self.taught, self.teacher, np.arange(len(self.taught.evaluation)))
        return sizes, self.taught.measure(outputs), _examples_per_second(self, student)


def _check_hidden(context: TaskContext, teacher: Teacher, own: Any, theirs: Any) -> None:
    """
    Raises:
        MismatchError: hidden states cannot be compared.
    """
    mine, other = context.network, teacher.pretrained.model
    problem = None
    if not isinstance(mine, TransformerConfig) or not isinstance(other, TransformerConfig):
        problem = "an ELMo has none of that kind"
    elif mine.network != other.network or not own.input_ids.equals(theirs.input_ids):
        problem = "they read other tokens"
    elif mine.hidden_size != other.hidden_size:
        problem = f"they are {mine.hidden_size} and {other.hidden_size} wide"
    if problem:
        raise MismatchError(
            f"Hidden states of the student and of the teacher {teacher.pretrained.reference} cannot be compared:"
            f" {problem}.",
            next_step="set training.distill.hidden_weight=0",
        )


def _examples_per_second(task: DistilledTask, student: nn.Module) -> dict[str, float]:
    """Evaluation rows that each network reads per second where it is, both measured by turns."""
    rows = np.arange(min(TIMED_ROWS, len(task.evaluation)))
    networks: Mapping[str, tuple[PreparedTask, nn.Module]] = {
        "teacher": (task.taught, task.teacher),
        "student": (task.own, student),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for number in range(ROUNDS + 1):
        for name, (own, model) in networks.items():
            started = time.perf_counter()
            _outputs(own, model, rows)
            # The first round allocates memory.
            seconds[name] += [time.perf_counter() - started] if number else []
    return {name: round(len(rows) / statistics.median(found), 1) for name, found in seconds.items()}


@torch.no_grad()
def _outputs(task: PreparedTask, model: nn.Module, rows: np.ndarray) -> np.ndarray:
    device = next(model.parameters()).device
    model.eval()
    found = []
    for first in range(0, len(rows), task.evaluation_batch_size):
        chosen = rows[first : first + task.evaluation_batch_size]
        found.append(task.outputs(model, task.batch(task.evaluation, chosen).to(device)))
    return torch.cat(found).cpu().numpy()
