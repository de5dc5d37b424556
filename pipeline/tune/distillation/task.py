"""A task whose loss also asks a teacher (Hinton et al. 2015, section 2; Sanh et al. 2019, section 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from models.weights import with_prefix
from pipeline.tune.distillation.teacher import Teacher, load_teacher
from pipeline.tune.forms.base import (
    Comparable,
    ComparableTask,
    PaddedBatch,
    TaskContext,
    unwrapped,
)
from pipeline.tune.settings import DistillSettings
from pipeline.tune.tokenizer import TextTokenizer

_INPUTS, _TARGETS = "teacher.inputs.", "teacher.targets."
"""Prefixes of the teacher's tensors among the targets of a batch."""


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
        _check_rows(own.train, taught.train, teacher)
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


def _check_rows(own: Any, theirs: Any, teacher: Teacher) -> None:
    """Windows of passages are rows of tokens, and must be the same for both."""
    has_windows = hasattr(own, "begin")
    if has_windows and not own.input_ids.equals(theirs.input_ids):
        raise MismatchError(
            f"The teacher {teacher.pretrained.reference} reads passages in other tokens than the student.",
            next_step="take a student with the teacher's tokenizer and kind of network",
        )


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
