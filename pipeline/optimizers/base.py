"""What an optimizer is: settings, the implementation that a machine gets, state, and what it cannot be combined with.

An optimizer is a module of this package with a settings class derived from `Optimizer`. torch is imported by the
functions that make or update tensors only, so that reading a configuration does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from pydantic import Field

from pipeline.config.loading import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Machine = Literal["cuda", "compiler", "plain"]
"""Where weights are updated: on a GPU, on CPUs with a C++ compiler, or on CPUs without one."""
Group = dict[str, Any]
"""A parameter group of torch: `params` and their settings."""
Update = Callable[[list["Tensor"], list["Tensor"], list[dict[str, Any]], Group], None]
"""Updates parameters in place: parameters, gradients and states of one group, and the group."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Implementations:
    """The class that updates weights on each kind of machine.

    The class for `plain` is torch's or ours and may be named for other machines too; all other names are DeepSpeed's.
    Checkpoints hold the name: the state of one class fits no other.
    """

    cuda: str
    compiler: str
    plain: str


class Kernels(Protocol):
    """Makes DeepSpeed's implementations by name. The engine passes it in: this package does not import deepspeed."""

    def __call__(self, name: str, groups: list[Group], **arguments: Any) -> torch.optim.Optimizer: ...


class Optimizer(Config):
    """The settings and class attributes that all optimizers have."""

    IMPLEMENTATIONS: ClassVar[Implementations]
    STATE: ClassVar[tuple[str, ...]]
    """Names of the float32 state tensors with one element per weight."""
    WHOLE_STATE: ClassVar[tuple[str, ...]] = ()
    """Names of the state tensors of another size than their parameter; never split, so only in ZeRO stage 0."""
    NEEDS_WHOLE: ClassVar[str] = ""
    """Why an optimizer cannot update ZeRO's shards and runs in stage 0 only; empty where it can."""
    OFFLOADABLE: ClassVar[bool] = False
    """Whether DeepSpeed can keep its state in host memory."""

    kind: str
    """Says which settings these are."""
    lr: float = Field(gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Applied to matrices; never to biases and norms."""
    clip: float | None = Field(default=1.0, ge=0)
    """Largest global gradient norm; 0 or null does not clip (RoBERTa, ModernBERT)."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Learning rate of each layer as a share of the rate of the layer above it, embeddings below all (Howard and Ruder
    2018, section 3.2; Clark et al. 2020, table 6); null gives all the same."""

    def implementation(self, machine: Machine) -> str:
        """Name of the class that updates weights on a machine."""
        return getattr(self.IMPLEMENTATIONS, machine)

    def implementations(self, *, offloaded: bool) -> tuple[str, ...]:
        """The classes for all kinds of machines, without duplicates, GPUs first; with `offloaded`, for CPUs only."""
        machines = get_args(Machine)[1 if offloaded else 0 :]
        return tuple(dict.fromkeys(map(self.implementation, machines)))

    def arguments(self) -> dict[str, Any]:
        """What the constructors of all implementations take besides the groups, the learning rate and weight decay."""
        raise NotImplementedError

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        """The implementation for `plain` machines, with a learning rate of 0."""
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[Group]:
        """The parameters in groups that differ in weight decay or learning rate."""
        from models.weights import decay_groups

        return decay_groups(model, self.weight_decay, self.layer_decay)

    def make(self, name: str, model: nn.Module, kernels: Kernels | None = None) -> torch.optim.Optimizer:
        """The optimizer of a network, in the implementation `name` that `implementation` chose.

        Its groups hold, besides the constructor's arguments, `lr_scale` (their share of the learning rate) and `sizes`
        (name and number of elements of each parameter, in order), which checkpoints then hold too. The learning rate is
        0 until the first update sets it: DeepSpeed makes an update of its own at the start of mixed precision without
        ZeRO.

        Args:
            kernels: needed for all names but that of `plain` machines.
        """
        groups = self.groups(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        for group in groups:
            group["sizes"] = [(names[parameter], parameter.numel()) for parameter in group["params"]]
        if name == self.IMPLEMENTATIONS.plain:
            return self.in_torch(groups)
        assert kernels is not None
        return kernels(name, groups, lr=0.0, **self.arguments())

    def state(self, *, on_cuda: bool) -> tuple[str, ...]:
        """Names of the state tensors with one element per weight, on a GPU or on CPUs, as for offloaded state."""
        return self.STATE

    def state_bytes(
        self, elements: int, shapes: Iterable[tuple[str, tuple[int, ...]]], *, on_cuda: bool
    ) -> int:
        """Bytes of the state for a shard of `elements` weights.

        Args:
            shapes: names and shapes of the network's trained parameters, for optimizers whose state depends on them.
        """
        return FLOAT_BYTES * len(self.state(on_cuda=on_cuda)) * elements

    def update_bytes(self, elements: int, largest: int, *, on_cuda: bool) -> int:
        """Bytes of temporary tensors in an update of a shard of `elements` weights; `largest` is the number of elements
        of the largest parameter."""
        return 0


def everywhere(name: str) -> Implementations:
    """The implementations of an optimizer that is written in torch for all kinds of machines."""
    return Implementations(name, name, name)
