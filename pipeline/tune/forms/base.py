"""The interface between a form of task and the trainer.

A form is a class that is made from a `TaskContext` and holds the encoded examples of one task. The trainer asks it for
batches, losses, outputs and metrics; the runner asks it for a network, predictions and baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from models.config import NetworkConfig
from pipeline.tune.files.lines import json_lines as json_lines
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tokenizer import TextTokenizer

Metrics = dict[str, float]
"""By name, higher is better, as a share of 1."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Everything that a form needs to encode a task for a network."""

    config: Any
    """Settings of the task."""
    data: TaskData[Any]
    """Its examples; for training, only the sample that is used."""
    settings: TrainingConfig
    network: NetworkConfig
    tokenizer: TextTokenizer


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a network that starts from a checkpoint."""

    own: str
    """Prefix of the names of its tensors."""
    theirs: tuple[str, ...] = ()
    """Prefixes in checkpoints, of which the first existing one counts; empty where it is `own`."""
    required: bool = True
    """Whether a checkpoint without it is refused."""


ENCODER = Part("encoder.", ("encoder.", "discriminator.encoder."))
"""An encoder; in a checkpoint of a whole ELECTRA, the encoder of the discriminator."""


STACK_PARTS: Mapping[str, tuple[Part, ...]] = MappingProxyType(
    {
        "encoder": (ENCODER,),
        "decoder": (Part("decoder."),),
        "encoder_decoder": (Part("encoder."), Part("decoder.")),
    }
)
"""By kind of network, the parts below a head on its tokens."""


def feature_parts(kind: str) -> tuple[Part, ...]:
    """The parts of a network below a linear layer on its frozen features, by kind of network."""
    parts = STACK_PARTS.get(kind, (Part("encoder."),))
    return tuple(Part(f"features.{part.own}", part.theirs or (part.own,)) for part in parts)


EVALUATION_BATCH_SIZE = 64
"""Rows in one forward pass of an evaluation, unless a row takes several sequences."""


class EncodedPart(Protocol):
    """Encoded examples to learn from, or to score on."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: tokens of each row; rows of similar length are batched together."""
        ...

    @property
    def predictions(self) -> np.ndarray:
        """int64 [rows]: predictions that each row's loss sums over; an update divides by their sum."""
        ...


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows as tensors, padded on the right to the longest of them."""

    inputs: dict[str, Tensor]
    """Keyword arguments of the network."""
    targets: dict[str, Tensor]
    """Tensors that the form compares the network's outputs with."""

    @classmethod
    def of(cls, inputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> PaddedBatch:
        """A batch in host memory."""
        tensors = (
            {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
            for arrays in (inputs, targets)
        )
        return cls(*tensors)

    def to(self, device: torch.device) -> PaddedBatch:
        """A copy on another device."""
        return PaddedBatch(
            {name: tensor.to(device) for name, tensor in self.inputs.items()},
            {name: tensor.to(device) for name, tensor in self.targets.items()},
        )


class PreparedTask(Protocol):
    """A task, encoded for a network."""

    @property
    def train(self) -> EncodedPart:
        """Rows to train on."""
        ...

    @property
    def evaluation(self) -> EncodedPart:
        """Rows to evaluate on."""
        ...

    @property
    def test(self) -> EncodedPart | None:
        """Rows without right answers, to predict after the training; None where there are none."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the network that start from a checkpoint."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the encoded examples for people, without the full stop; empty in most forms."""
        ...

    @property
    def evaluation_batch_size(self) -> int:
        """Rows of `evaluation` or `test` in one forward pass of each process."""
        ...

    def build(self) -> nn.Module:
        """Make the network, on the meta device if the caller sets it."""
        ...

    def batch(self, part: Any, rows: np.ndarray) -> PaddedBatch:
        """The rows (int64 [batch]) of `train`, `evaluation` or `test` as tensors in host memory."""
        ...

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 scalar: the loss in nats, summed over the predictions of the batch."""
        ...

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[batch, ...]: predictions for every row, of the same shape in all batches."""
        ...

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics, from the outputs of all rows of `evaluation`, in order."""
        ...

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """Predictions as files, by names such as `predictions.jsonl`."""
        ...

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        """From the outputs of all rows of `test`, in order: files that a leaderboard takes, by their names there."""
        ...

    def baselines(self) -> dict[str, Metrics]:
        """Metrics of predictions without a network by name, for comparison; empty in most forms."""
        ...


HIDDEN = -1e9
"""The logit of a class that has no probability; finite, so that differences of two such logits are."""


@dataclass(frozen=True, slots=True)
class Comparable:
    """Distributions that a student learns from its teacher."""

    logits: Tensor
    """float32 [distributions, classes]; [examples, 1] numbers in a regression."""
    weights: Tensor
    """float32 [distributions]: how much each counts beside the losses of right answers; 0 where there is none."""


class ComparableTask(PreparedTask, Protocol):
    """A task whose networks can learn from a teacher."""

    def loss_of(self, model: nn.Module, outputs: Tensor, batch: PaddedBatch) -> Tensor:
        """`loss`, of outputs that the network gave."""
        ...

    def comparable(self, model: nn.Module, batch: PaddedBatch) -> tuple[Tensor, Comparable]:
        """The network's outputs as `loss_of` takes them, and as distributions."""
        ...


EXCERPT_CHARACTERS = 1000
"""The longest text that a line of predictions repeats."""


def excerpt(text: str, around: int = 0) -> str:
    """At most EXCERPT_CHARACTERS of a text; of a longer one the part with the character number `around`."""
    first = max(0, min(around - EXCERPT_CHARACTERS // 2, len(text) - EXCERPT_CHARACTERS))
    return text[first : first + EXCERPT_CHARACTERS]


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, where several processes train it through a wrapper."""
    module = getattr(model, "module", None)
    return module if isinstance(module, nn.Module) else model
