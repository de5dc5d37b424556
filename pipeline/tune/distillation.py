"""A task whose loss also asks a teacher (Hinton et al. 2015, section 2; Sanh et al. 2019, section 3), and teacher and
student side by side: parameters, size, speed and score."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cluster.artefacts.errors import MismatchError
from models.config import TransformerConfig
from models.distillation import divergence, hidden_distance
from models.features import recorded_layers
from models.weights import count_parameters, with_prefix
from pipeline.tasks.settings import DistillSettings
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.forms.base import (
    Comparable,
    ComparableTask,
    Metrics,
    PaddedBatch,
    PreparedTask,
    TaskContext,
    unwrapped,
)
from pipeline.tune.scores import Distillation
from pipeline.tune.teacher import Teacher, load_teacher

_INPUTS, _TARGETS = "teacher.inputs.", "teacher.targets."
"""Prefixes of the teacher's tensors among the targets of a batch."""
TIMED_ROWS = 256
"""Evaluation rows that are timed at most."""
ROUNDS = 3
"""Times that each network reads them, by turns; the median counts."""


@dataclass(frozen=True)
class DistilledTask:
    """A task, encoded for a student and for its teacher, which reads the same examples with its own tokenizer."""

    own: ComparableTask
    """The student's."""
    taught: ComparableTask
    """The teacher's."""
    teacher: nn.Module
    settings: DistillSettings
    is_regression: bool

    @classmethod
    def prepare(
        cls, form: Callable[[TaskContext], Any], context: TaskContext, teacher: Teacher, device: torch.device
    ) -> DistilledTask:
        """Encode the task for both.

        Raises:
            MismatchError: teacher and task, or teacher and student, do not fit together.
        """
        settings = context.settings.distill
        assert settings is not None, "only tasks with a teacher are distilled"
        pretrained = teacher.pretrained
        plain = context.settings.model_copy(update={"features": None, "distill": None, "peft": None})
        network = pretrained.model
        tokenizer = TextTokenizer(pretrained.tokenizer_path)
        own = form(context)
        taught = form(dataclasses.replace(context, settings=plain, network=network, tokenizer=tokenizer))
        # Windows of passages are rows of tokens, and must be the same for both.
        if hasattr(own.train, "begin") and not own.train.input_ids.equals(taught.train.input_ids):
            raise MismatchError(
                f"The teacher {teacher.pretrained.reference} reads passages in other tokens than the student.",
                next_step="take a student with the teacher's tokenizer and kind of network",
            )
        if settings.hidden_weight:
            _check_hidden(context, teacher, own.train, taught.train)
        return cls(
            own=own,
            taught=taught,
            teacher=load_teacher(teacher, taught, device),
            settings=settings,
            is_regression=getattr(context.config, "regression", False),
        )

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
        """(1 - soft_share) of the loss of right answers, soft_share of the teacher's, and the hidden states'."""
        share, weight = self.settings.soft_share, self.settings.hidden_weight
        taught = PaddedBatch(with_prefix(batch.targets, _INPUTS), with_prefix(batch.targets, _TARGETS))
        with recorded_layers(unwrapped(model)) if weight else nullcontext([]) as states:
            logits = self.own.logits(model, batch)
        with torch.no_grad(), recorded_layers(self.teacher) if weight else nullcontext([]) as wanted_states:
            wanted = self.taught.comparable(self.taught.logits(self.teacher, taught), taught)
        mine, hard = self.own.comparable(logits, batch), self.own.loss_of(model, logits, batch)
        loss = (1 - share) * hard + share * self.soft_loss(mine, wanted)
        if weight:
            present = batch.inputs["attention_mask"].bool()
            # An update divides by the number of its predictions.
            loss = loss + weight * hidden_distance(states, wanted_states, present) * mine.weights.sum()
        return loss

    def soft_loss(self, mine: Comparable, wanted: Comparable) -> Tensor:
        """float32 scalar, summed: the divergence from the teacher's probabilities, or squared distance of numbers."""
        if self.is_regression:
            each = (mine.logits - wanted.logits).square().sum(-1)
        else:
            each = divergence(mine.logits, wanted.logits, self.settings.temperature).sum(-1)
        # The teacher may have cut other words than the student.
        return (each * mine.weights * (wanted.weights > 0)).sum()


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


@dataclass(frozen=True, slots=True)
class Compared:
    """Teacher and student after a training."""

    sizes: Distillation
    metrics: Metrics
    """Metrics of the teacher on the evaluation examples."""
    examples_per_second: dict[str, float]
    """Evaluation rows that `teacher` and `student` read per second."""


def compare(task: DistilledTask, student: nn.Module, teacher: Teacher) -> Compared:
    """Measure both networks where they are, in one process."""

    def num_bytes(model: nn.Module) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

    rows = np.arange(len(task.taught.evaluation))
    return Compared(
        sizes=Distillation(
            teacher=teacher.pretrained.fingerprint,
            teacher_parameters=count_parameters(task.teacher),
            student_parameters=count_parameters(student),
            teacher_bytes=num_bytes(task.teacher),
            student_bytes=num_bytes(student),
        ),
        metrics=task.taught.measure(_outputs(task.taught, task.teacher, rows)),
        examples_per_second=_examples_per_second(task, student),
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
