"""A task as a form prepares it for a network: encoded examples, network, losses, predictions and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.config import FeatureSettings, NetworkConfig
from pipeline.tasks.settings import TrainingConfig
from pipeline.tasks.task import TaskData
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.encoding import EncodedRows

Metrics = dict[str, float]
"""By name, higher is better, as a share of 1."""
EVALUATION_BATCH_SIZE = 64
"""Rows in one forward pass of an evaluation, unless a row takes several sequences."""
HIDDEN = -1e9
"""The logit of a class that has no probability; finite, so that differences of two such logits are."""
EXCERPT_CHARACTERS = 1000
"""The longest text that a line of predictions repeats."""


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
class NetworkPart:
    """A part of a network that starts from a checkpoint."""

    own: str
    """Prefix of the names of its tensors."""
    theirs: tuple[str, ...] = ()
    """Prefixes in checkpoints; the first existing one counts. Empty where it is `own`."""
    required: bool = True
    """Whether a checkpoint without it is refused."""


STACK_PARTS: Mapping[str, tuple[NetworkPart, ...]] = MappingProxyType(
    {
        # In a checkpoint of a whole ELECTRA, the encoder of the discriminator.
        "encoder": (NetworkPart("encoder.", ("encoder.", "discriminator.encoder.")),),
        "decoder": (NetworkPart("decoder."),),
        "encoder_decoder": (NetworkPart("encoder."), NetworkPart("decoder.")),
        "elmo": (NetworkPart("encoder."),),
    }
)
"""By kind of network, the parts below a head on its tokens."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """How one kind of network scores labels."""

    build: Callable[[Any, int], nn.Module]
    """(configuration, number of labels) to a network that gives logits of the labels."""
    parts: tuple[NetworkPart, ...]
    """The parts that start from a checkpoint."""
    penalty: Callable[[Any], Tensor] | None = None
    """(network) to a penalty on its weights, a scalar that is added to the loss of an update."""

    def on(self, layer: Any, network: NetworkConfig, features: FeatureSettings | None) -> Scorer:
        """The scorer itself, or, where there are settings of frozen features, a linear layer on them.

        Args:
            layer: the class of the linear layer, which is made from configuration, number of labels and features.
        """
        if features is None:
            return self
        parts = STACK_PARTS[network.network]
        return Scorer(
            build=lambda config, num_labels: layer(config, num_labels, features),
            parts=tuple(NetworkPart(f"features.{part.own}", part.theirs or (part.own,)) for part in parts),
            penalty=layer.penalty,
        )

    def penalised(self, loss: Tensor, model: nn.Module, predictions: Tensor | int) -> Tensor:
        """A loss that is summed over so many predictions, with the network's penalty."""
        # An update divides by the number of its predictions, so their penalties add up to one.
        return loss if self.penalty is None else loss + self.penalty(unwrapped(model)) * predictions


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


class PreparedTask:
    """A task, encoded for a network. Each form is a class of its own, which is made from a `TaskContext`."""

    train: EncodedRows
    """Rows to train on."""
    evaluation: EncodedRows
    """Rows to evaluate on."""
    test: EncodedRows | None = None
    """Rows without right answers, to predict after the training."""
    parts: tuple[NetworkPart, ...]
    """The parts of the network that start from a checkpoint."""
    notes: tuple[str, ...] = ()
    """Sentences about the encoded examples for people, without the full stop."""
    evaluation_batch_size: int = EVALUATION_BATCH_SIZE
    """Rows of `evaluation` or `test` in one forward pass of each process."""

    def __init__(self, context: TaskContext) -> None:
        self.config = context.config
        # `check_network` refuses networks that do not carry a form.
        self.network: Any = context.network
        self.tokenizer = context.tokenizer
        self.labels = context.data.labels
        self.examples: Sequence[Any] = context.data.evaluation
        """The examples of `evaluation`."""
        self.test_examples: Sequence[Any] = context.data.test
        """The examples of `test`."""

    def build(self) -> nn.Module:
        """Make the network, on the meta device if the caller sets it."""
        raise NotImplementedError

    def batch(self, part: Any, rows: np.ndarray) -> PaddedBatch:
        """The rows (int64 [batch]) of `train`, `evaluation` or `test` as tensors in host memory."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 scalar: the loss in nats, summed over the predictions of the batch."""
        return self.loss_of(model, self.logits(model, batch), batch)

    def logits(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """The scores that the network gives; forms without such scores, which no teacher teaches, define `loss`."""
        raise NotImplementedError

    def loss_of(self, model: nn.Module, logits: Tensor, batch: PaddedBatch) -> Tensor:
        """`loss`, of `logits` that the network gave."""
        raise NotImplementedError

    def comparable(self, logits: Tensor, batch: PaddedBatch) -> tuple[Tensor, Tensor]:
        """Distributions that a student learns from its teacher.

        Returns:
            float32 [distributions, classes] logits, [examples, 1] numbers in a regression; and float32 [distributions]:
            how much each counts beside the losses of right answers, 0 where there is none.
        """
        raise NotImplementedError

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[batch, ...]: predictions for every row, of the same shape in all batches."""
        raise NotImplementedError

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics, from the outputs of all rows of `evaluation`, in order."""
        return self.config.measure(self.examples, outputs)

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """Predictions as files, by names such as `predictions.jsonl`."""
        raise NotImplementedError

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        """From the outputs of all rows of `test`, in order: files that a leaderboard takes, by their names there."""
        return self.config.submission(self.test_examples, outputs, self.labels)

    def baselines(self) -> dict[str, Metrics]:
        """Metrics of predictions without a network by name, for comparison; empty in most forms."""
        return {}


def excerpt(text: str, around: int = 0) -> str:
    """At most EXCERPT_CHARACTERS of a text; of a longer one the part with the character number `around`."""
    first = max(0, min(around - EXCERPT_CHARACTERS // 2, len(text) - EXCERPT_CHARACTERS))
    return text[first : first + EXCERPT_CHARACTERS]


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, where several processes train it through a wrapper."""
    module = getattr(model, "module", None)
    return module if isinstance(module, nn.Module) else model
