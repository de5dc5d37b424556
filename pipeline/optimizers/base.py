"""The interface of an optimizer: its settings, the torch optimizer that it makes, and the memory of its state.

An optimizer is a module of this package with a settings class derived from `Optimizer`. torch is imported by the
functions that make or update tensors only, so that reading a configuration does not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from pipeline.config.loading import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Group = dict[str, Any]
"""A parameter group of torch: `params` and their settings."""
FLOAT_BYTES = 4


class Optimizer(Config):
    """The settings and class attributes that all optimizers have."""

    STATE: ClassVar[tuple[str, ...]]
    """Names of the float32 state tensors with one element per weight."""
    WHOLE_STATE: ClassVar[tuple[str, ...]] = ()
    """Names of the state tensors of another size than their parameter; never split, so only in ZeRO stage 0."""
    NEEDS_WHOLE: ClassVar[str] = ""
    """Why an optimizer cannot update ZeRO's shards and runs in stage 0 only; empty where it can."""
    TEMPORARIES: ClassVar[int] = 0
    """Float32 tensors of the updated tensor's size that an update allocates for a while."""

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

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        """The torch optimizer of these groups, with a learning rate of 0: `update`, with its own settings."""
        from pipeline.optimizers.functional import FunctionalOptimizer

        own = [name for name in type(self).model_fields if name not in Optimizer.model_fields]
        return FunctionalOptimizer(groups, self.update, **{name: getattr(self, name) for name in own})

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """Update a parameter in place.

        The state is made at the first update, as all optimizers under ZeRO must: before, ZeRO has not yet put flat
        tensors in the parameters' place.

        Args:
            state: of the parameter; empty at first.
            group: the settings, with `lr`, the rate of this update.
        """
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[Group]:
        """The parameters in groups that differ in weight decay or learning rate."""
        from models.weights import decay_groups

        return decay_groups(model, self.weight_decay, self.layer_decay)

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a network, the same class on every machine and in every ZeRO stage.

        Its groups hold, besides the constructor's arguments, `lr_scale` (their share of the learning rate) and `sizes`
        (name and number of elements of each parameter, in order), which checkpoints then hold too. The learning rate is
        0 until the first update sets it: DeepSpeed makes an update of its own at the start of mixed precision without
        ZeRO.
        """
        groups = self.groups(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        for group in groups:
            group["sizes"] = [(names[parameter], parameter.numel()) for parameter in group["params"]]
        return self.in_torch(groups)

    def state_bytes(self, elements: int, model: nn.Module) -> int:
        """Bytes of the state for a shard of `elements` weights of a network, which may be on the meta device."""
        return FLOAT_BYTES * len(self.STATE) * elements
