"""A run's network as planning sees it: its parameters, and the sizes of its micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from cluster.artefacts.errors import ConfigError
from models.config import NetworkConfig
from models.transformer import Choice, choose_backend
from pipeline.checkpoint.references import resolve_model
from pipeline.objectives import build_model
from pipeline.objectives.base import resolve_references
from pipeline.plan.activations import Activations, Shape, activations_of
from pipeline.plan.example import Reader, example_batch, reader_of
from pipeline.plan.flops import count_flops
from pipeline.run.config import PretrainConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_EXAMPLE_ROWS = 4
"""Samples of the micro-batch whose sizes stand for all."""


@dataclass
class Network:
    """The network of a run, without storage."""

    config: PretrainConfig
    on_cuda: bool
    reader: Reader
    model: nn.Module
    attention: Choice
    """The kernel of the attention on that device, and why."""
    _shapes: dict[int, tuple[Shape, float]] = field(default_factory=dict)
    """Sizes of the example, and operations of a sample, by sequence length."""

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the trained parameters."""
        named = self.model.named_parameters()
        return tuple((name, tuple(one.shape)) for name, one in named if one.requires_grad)

    @cached_property
    def _sizes(self) -> list[int]:
        return [each.numel() for each in self.model.parameters() if each.requires_grad]

    @property
    def num_parameters(self) -> int:
        """Elements of the trained parameters."""
        return sum(self._sizes)

    @property
    def largest(self) -> int:
        """Elements of the largest of them."""
        return max(self._sizes)

    @cached_property
    def teacher_elements(self) -> int:
        """Elements of a network that is imitated, which is on the device too."""
        teacher = getattr(self.model, "teacher", None)
        return sum(each.numel() for each in teacher.parameters()) if isinstance(teacher, nn.Module) else 0

    def flops_per_sample(self, sequence_length: int) -> float:
        """Model FLOPs of a sample, forward and backward, as a run's own meters count them."""
        return self._example(sequence_length)[1]

    def activations(self, rows: int, sequence_length: int, *, recomputes: bool) -> tuple[Activations, int]:
        """Memory of a micro-batch of `rows` samples of a phase with that sequence length, and bytes of its inputs."""
        shape = self._example(sequence_length)[0].scaled(rows)
        found = activations_of(
            self.model,
            shape,
            item=ITEM_BYTES[self.config.precision],
            on_cuda=self.on_cuda,
            varlen=self.attention.backend == "varlen",
            recomputes=recomputes,
        )
        return found, int(shape.inputs_bytes)

    def _example(self, sequence_length: int) -> tuple[Shape, float]:
        if sequence_length not in self._shapes:
            inputs = example_batch(self.config, self.reader.vocabulary, _EXAMPLE_ROWS, sequence_length).inputs
            shape = Shape.of(self.model.config, inputs, _EXAMPLE_ROWS)
            flops = count_flops(self.model, inputs).total / _EXAMPLE_ROWS
            self._shapes[sequence_length] = shape, flops
        return self._shapes[sequence_length]


def make_network(
    config: PretrainConfig,
    *,
    on_cuda: bool,
    vocab_size: int | None = None,
    capability: tuple[int, int] | None = None,
) -> Network:
    """Build the network of a run without storage.

    Args:
        vocab_size: as `reader_of` takes it.
        capability: compute capability of a GPU; None asks that of this machine, if there is one.

    Raises:
        ConfigError: objective, network or attention kernel do not fit.
        ReferenceNotFoundError: there is no such teacher.
    """
    reader = reader_of(config, vocab_size)
    shape = replace(config.model, vocab_size=reader.vocabulary.size)
    attention = attention_kernel(config, shape, "cuda" if on_cuda else "cpu", capability)
    outside = resolve_references(config.objective, resolve_model)
    with torch.device("meta"):
        model = build_model(config.objective, shape, outside)
    if isinstance(teacher := getattr(model, "teacher", None), nn.Module):
        teacher.to("meta")
    return Network(config, on_cuda, reader, model.train(), attention)


def attention_kernel(
    config: PretrainConfig, shape: NetworkConfig, device: str, capability: tuple[int, int] | None
) -> Choice:
    """The kernel of the attention on a device, and why.

    Raises:
        ConfigError: the one that is asked for cannot work there.
    """
    try:
        return choose_backend(
            shape,
            config.compute.attention_backend,
            device=torch.device(device),
            dtype=DTYPES[config.precision],
            capability=capability,
        )
    except ValueError as error:
        raise ConfigError(str(error), next_step="set compute.attention_backend=auto") from None
