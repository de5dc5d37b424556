"""Adding a method of parameter-efficient fine-tuning to a network; what of it is trained, saved, loaded and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.heads import MaskedLanguageModelHead, VocabularyProjection
from models.initialization import named_generator
from models.peft.adapters import add_adapters
from models.peft.lora import LoraLinear, add_lora, check_lora
from models.peft.prefix import add_prefix, check_prefix
from models.peft.settings import (
    AdapterSettings,
    BitFitSettings,
    LoraSettings,
    MamSettings,
    PeftSettings,
    PrefixSettings,
)
from models.stacks import Decoder, Encoder
from models.transformer import Transformer
from models.weights import check_tensors

PRETRAINED = (Encoder, Decoder, VocabularyProjection, MaskedLanguageModelHead)
"""Modules whose weights come from pre-training; everything else in a network is a head, which is always trained."""


def apply_peft(model: nn.Module, settings: PeftSettings, seed: int) -> nn.Module:
    """Freeze a network but for its head, and add what is trained instead. The network is changed in place.

    Names of its own tensors stay as they are, so weights can be loaded before or after. All methods but prefixes leave
    what it computes as it was.

    Args:
        model: a network of ours on any device; on the meta device the new tensors have no memory either.
        seed: decides the initial weights, each with the name of its parameter, as in `init_weights`.
    Raises:
        ValueError: the method does not fit the network, or it has one already; nothing is changed then.
    """
    if not any(isinstance(module, Transformer) for module in model.modules()):
        raise ValueError(
            "parameter-efficient fine-tuning needs a network of Transformer layers; ELMo has none"
        )
    if hasattr(model, "peft_settings"):
        raise ValueError("the network has a method of parameter-efficient fine-tuning already")
    before = {name for name, _ in model.named_parameters()}
    parts = settings.parts if isinstance(settings, MamSettings) else (settings,)
    for part in parts:
        _METHODS[type(part)][0](model, part)
    model.requires_grad_(False)
    for _, parameter in _head_parameters(model):
        parameter.requires_grad_(True)
    with torch.device("meta"):
        for part in parts:
            _METHODS[type(part)][1](model, part)
    model.peft_settings = settings  # pyright: ignore[reportArgumentType]
    _initialize(model, before, seed)
    return model


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name: what was added, and the head."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def trained_share(model: nn.Module) -> float:
    """Trained parameters as a share of the pre-trained ones; without the head, as papers count. Works on the meta
    device."""
    heads = {name for name, _ in _head_parameters(model)}
    added = trained_parameters(model).keys() - heads
    numbers = {name: parameter.numel() for name, parameter in model.named_parameters() if name not in heads}
    new = {"lora", "prefix", "memory_prefix"}
    own = sum(
        number
        for name, number in numbers.items()
        if not new & set(name.split(".")) and "_adapter." not in name
    )
    return sum(numbers[name] for name in added) / own


def peft_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of `trained_parameters`: a checkpoint beside the network that was started from."""
    return {name: parameter.detach() for name, parameter in trained_parameters(model).items()}


@torch.no_grad()
def load_peft(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `peft_state` into a network with the same method applied. Nothing is copied unless everything
    fits.

    Raises:
        ValueError: tensors are missing, unexpected or of another shape; they are named.
    """
    trained = trained_parameters(model)
    check_tensors(trained, tensors, "the state of parameter-efficient fine-tuning")
    for name, parameter in trained.items():
        parameter.copy_(tensors[name])


def merge(model: nn.Module) -> nn.Module:
    """Add the updates of LoRA to the weights, so that the network is as fast and has the tensors that it had before.

    The network is changed in place. All its parameters are trained afterwards.

    Raises:
        ValueError: another method was applied, which is no change of weights.
    """
    settings = getattr(model, "peft_settings", None)
    if not isinstance(settings, LoraSettings | BitFitSettings):
        kind = settings.kind if settings is not None else "none"
        raise ValueError(
            f"only lora and bitfit change weights and can be merged into them; the method is {kind}"
        )
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoraLinear):
                setattr(module, name, child.merged())
    del model.peft_settings
    return model.requires_grad_(True)


def _head_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    inside = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, PRETRAINED)
        for parameter in module.parameters()
    }
    return ((name, one) for name, one in model.named_parameters() if id(one) not in inside)


def _check_bitfit(model: nn.Module, settings: BitFitSettings) -> None:
    if not _biases(model):
        raise ValueError("bitfit trains biases, and this network has none; take another method")


def _add_bitfit(model: nn.Module, settings: BitFitSettings) -> None:
    for parameter in _biases(model):
        parameter.requires_grad_(True)


def _biases(model: nn.Module) -> list[nn.Parameter]:
    """Biases of linear layers and norms in all stacks."""
    stacks = [module for module in model.modules() if isinstance(module, Encoder | Decoder)]
    named = (pair for stack in stacks for pair in stack.named_parameters())
    return [parameter for name, parameter in named if name.rpartition(".")[2] == "bias"]


@torch.no_grad()
def _initialize(model: nn.Module, before: set[str], seed: int) -> None:
    """Draw what was added, on the device and in the precision of the rest."""
    like = next(iter(model.parameters()))
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            full = f"{path}.{name}" if path else name
            if full in before:
                continue
            draw: Any = module.draw
            placed = torch.empty(parameter.shape, device=like.device, dtype=like.dtype)
            if not placed.is_meta:
                placed.copy_(draw(name, parameter.shape, named_generator(seed, full)))
            setattr(module, name, nn.Parameter(placed))


_METHODS: Mapping[type, tuple[Callable[[nn.Module, Any], None], Callable[[nn.Module, Any], None]]] = {
    LoraSettings: (check_lora, add_lora),
    AdapterSettings: (lambda model, settings: None, add_adapters),
    PrefixSettings: (check_prefix, add_prefix),
    BitFitSettings: (_check_bitfit, _add_bitfit),
}
"""Functions that refuse a network which a method does not fit, and that add the method."""
