"""A run's network as planning sees it: its parameters, and traces of its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from cluster.artefacts.errors import ConfigError
from models.backends import Choice, choose_backend, use_backend
from models.config import NetworkConfig
from models.initialization import without_memory
from models.transformer import Transformer
from pipeline.checkpoint.references import resolve_model
from pipeline.objectives.outside import resolve_references
from pipeline.objectives.registry import build_model
from pipeline.plan.example import Reader, example_batch, reader_of
from pipeline.plan.trace import Device, Place, Trace, trace, without_storage
from pipeline.run.config import PretrainConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Network:
    """The network of a run, without storage, and the traces that were asked for."""

    config: PretrainConfig
    device: Device
    reader: Reader
    model: nn.Module
    attention: Choice
    """The kernel of the attention on that device, and why."""
    place: Place
    _traces: dict[tuple[int, int, bool], Trace] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Elements of the trained parameters in the optimizer's groups: matrices, then the others."""
        trained = [each for each in self.model.parameters() if each.requires_grad]
        matrices = tuple(each.numel() for each in trained if each.dim() > 1)
        others = tuple(each.numel() for each in trained if each.dim() <= 1)
        return tuple(group for group in (matrices, others) if group)

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the trained parameters."""
        named = self.model.named_parameters()
        return tuple((name, tuple(one.shape)) for name, one in named if one.requires_grad)

    @property
    def num_parameters(self) -> int:
        """Elements of the trained parameters."""
        return sum(map(sum, self.groups))

    @property
    def teacher_elements(self) -> int:
        """Elements of a network that is imitated, which is on the device too."""
        teacher = getattr(self.model, "teacher", None)
        return sum(each.numel() for each in teacher.parameters()) if isinstance(teacher, nn.Module) else 0

    def trace(self, rows: int, sequence_length: int, gradient_checkpointing: bool | None = None) -> Trace:
        """Memory and operations of a micro-batch of `rows` samples of a phase with that sequence length.

        Args:
            gradient_checkpointing: None takes what the configuration says.
        """
        recomputes = self.config.compute.gradient_checkpointing
        if gradient_checkpointing is not None:
            recomputes = gradient_checkpointing
        key = (rows, sequence_length, recomputes)
        if key not in self._traces:
            for module in self.model.modules():
                if isinstance(module, Transformer):
                    module.gradient_checkpointing = recomputes
            self._traces[key] = self._traced(rows, sequence_length)
        return self._traces[key]

    def flops_per_sample(self, sequence_length: int) -> float:
        """Model FLOPs of a sample, forward and backward, as a run's own meters count them."""
        rows = self.config.batch.micro_batch_size
        return self.trace(rows, sequence_length).flops.total / rows

    def _traced(self, rows: int, sequence_length: int) -> Trace:
        batch = example_batch(self.config, self.reader.vocabulary, rows, sequence_length)
        return trace(self.model, batch.inputs, self.device, self.place)


def make_network(
    config: PretrainConfig,
    device: Device,
    vocab_size: int | None = None,
    *,
    capability: tuple[int, int] | None = None,
) -> Network:
    """Build the network of a run without storage, as it is computed on a device.

    Args:
        vocab_size: as `reader_of` takes it.
        capability: compute capability of a GPU; None asks that of this machine, if there is one.

    Raises:
        ConfigError: objective, network or attention kernel do not fit.
        ReferenceNotFoundError: there is no such teacher.
    """
    reader = reader_of(config, vocab_size)
    shape = replace(config.model, vocab_size=reader.vocabulary.size)
    outside = resolve_references(config.objective, resolve_model)
    # ELMo's own code for accelerators is that for CPUs, and it asks about autocast, which `meta` knows nothing of.
    place: Place = "cpu" if device == "cpu" or config.model.network == "elmo" else "meta"
    without = without_memory() if place == "meta" else without_storage(place)
    with without, _default_dtype(DTYPES[config.precision]):
        model = build_model(config.objective, shape, outside)
    if isinstance(teacher := getattr(model, "teacher", None), nn.Module):
        teacher.to(device=place, dtype=DTYPES[config.precision])
    attention = attention_kernel(config, shape, device, capability)
    use_backend(model, attention)
    return Network(config, device, reader, model.train(), attention, place)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def attention_kernel(
    config: PretrainConfig, shape: NetworkConfig, device: Device, capability: tuple[int, int] | None
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
