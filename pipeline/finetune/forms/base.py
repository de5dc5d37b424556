"""What a form of task offers to the trainer.

A form is a class that is made from a `TaskContext` and then holds the encoded examples of one task. The trainer
asks it for batches, their loss and their outputs; the runner asks it for a network and for what it measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.config import NetworkConfig
from pipeline.finetune.settings import TrainingConfig
from pipeline.finetune.task import TaskData
from pipeline.finetune.tokenizer import TextTokenizer

Metrics = dict[str, float]
"""By name, higher is better, as a share of 1."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a form is made from."""

    config: Any
    """Settings of the task."""
    data: TaskData[Any]
    """Its examples; of those for training only the ones that are used."""
    settings: TrainingConfig
    network: NetworkConfig
    tokenizer: TextTokenizer


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a network that starts from a checkpoint."""

    own: str
    """What the names of its tensors begin with."""
    theirs: tuple[str, ...] = ()
    """The same in checkpoints, the first that is there; empty where they have the same name."""
    required: bool = True
    """Whether a checkpoint without it is refused."""


ENCODER = Part("encoder.", ("encoder.", "discriminator.encoder."))
"""An encoder; of an ELECTRA that has its generator still, the discriminator's."""


EVALUATION_BATCH_SIZE = 64
"""Rows in one forward pass of an evaluation, where each row is read once."""


class EncodedPart(Protocol):
    """Encoded examples to learn from, or to score on."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: tokens of each row, by which rows of similar cost are put together."""
        ...

    @property
    def predictions(self) -> np.ndarray:
        """int64 [rows]: what each row's loss sums over; an update divides by their sum."""
        ...


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows as tensors, padded on the right to the longest of them."""

    inputs: dict[str, Tensor]
    """Keyword arguments of the network."""
    targets: dict[str, Tensor]
    """What the form compares the network's outputs with."""

    def to(self, device: torch.device) -> PaddedBatch:
        """The same on another device."""
        return PaddedBatch(
            {name: tensor.to(device) for name, tensor in self.inputs.items()},
            {name: tensor.to(device) for name, tensor in self.targets.items()},
        )


class PreparedTask(Protocol):
    """A task in the hands of its form."""

    @property
    def train(self) -> EncodedPart:
        """What is learnt from."""
        ...

    @property
    def evaluation(self) -> EncodedPart:
        """What is scored on."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a checkpoint gives to the network."""
        ...

    @property
    def evaluation_batch_size(self) -> int:
        """Rows of `evaluation` in one forward pass of each process."""
        ...

    def build(self) -> nn.Module:
        """The network; without memory where the caller asks for the meta device."""
        ...

    def batch(self, part: Any, rows: np.ndarray) -> PaddedBatch:
        """The rows (int64 [batch]) of `train` or `evaluation` as tensors in host memory."""
        ...

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 scalar: the loss in nats, summed over the predictions of the batch."""
        ...

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[batch, ...]: what is kept of every row, of the same shape in all batches."""
        ...

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics, from the outputs of all rows of `evaluation`, in order."""
        ...

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """Predictions as files, by names such as `predictions.jsonl`."""
        ...

    def baselines(self) -> dict[str, Metrics]:
        """By name what is scored without a network, for comparison; mostly nothing."""
        ...


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON object per line."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, where several processes train it through a wrapper."""
    return model.module if isinstance(model, DistributedDataParallel) else model
