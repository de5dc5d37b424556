"""The optimizers of pre-training: which implementation a machine gets, and how parameters are grouped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cluster.artefacts.errors import ConfigError
from cluster.operators import compile_lock, has_compiler, operator_directory
from models.weights import decay_groups
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.processor import known_processor
from pipeline.runs.config import PretrainConfig
from pipeline.runs.settings import OptimizerConfig

_UNREACHED_STEP = 2**31
_OF_TORCH = frozenset({"AdamW", "Adagrad", "Lamb"})
"""Classes without an operator that is compiled on the machine."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Where an optimizer's updates are computed by which class; None where there is none."""

    cuda: str
    compiled: str | None
    """On CPUs, in an operator of DeepSpeed that is compiled on the machine."""
    plain: str | None
    """On CPUs without a compiler."""
    settings: Callable[[OptimizerConfig], dict[str, Any]]
    """Arguments of all these classes, besides the learning rate."""


def _uncorrected(config: OptimizerConfig) -> dict[str, Any]:
    # torch's AdamW has no such argument.
    return {} if config.bias_correction else {"bias_correction": False}


def _begun(config: OptimizerConfig) -> dict[str, Any]:
    # DeepSpeed's Adagrad has no such argument.
    return {"initial_accumulator": config.initial_accumulator} if config.initial_accumulator else {}


KINDS = {
    "adamw": Kind(
        "FusedAdam",
        "DeepSpeedCPUAdam",
        "AdamW",
        lambda config: {"betas": config.betas, "eps": config.eps, **_uncorrected(config)},
    ),
    "lion": Kind("FusedLion", "DeepSpeedCPULion", None, lambda config: {"betas": config.betas}),
    "lamb": Kind("FusedLamb", None, "Lamb", lambda config: {"betas": config.betas, "eps": config.eps}),
    "adagrad": Kind(
        "Adagrad", "DeepSpeedCPUAdagrad", "Adagrad", lambda config: {"eps": config.eps, **_begun(config)}
    ),
}


def optimizer_names(config: PretrainConfig) -> tuple[str, ...]:
    """The classes that update the weights on one machine or another, on GPUs first."""
    kind = KINDS[config.optimizer.kind]
    on_cuda = None if config.zero.offload_optimizer is not None else kind.cuda
    return tuple(name for name in dict.fromkeys((on_cuda, kind.compiled, kind.plain)) if name is not None)


def optimizer_name(config: PretrainConfig) -> str:
    """Class that updates the weights on this machine. A checkpoint of one class fits no other.

    Raises:
        ConfigError: this machine has no implementation of the optimizer.
    """
    kind = KINDS[config.optimizer.kind]
    if trains_on_cuda() and config.zero.offload_optimizer is None:
        return kind.cuda
    if config.optimizer.initial_accumulator:
        return "Adagrad"
    name = kind.compiled if kind.compiled is not None and has_compiler() else kind.plain
    if name is None:
        raise ConfigError(
            "optimizer.kind lion needs a C++ compiler on a machine without CUDA.",
            next_step="install g++ (apt-get install g++ ninja-build), or set optimizer.kind=adamw",
        )
    if name == "AdamW" and not config.optimizer.bias_correction:
        raise ConfigError(
            "optimizer.bias_correction false needs a C++ compiler on a machine without CUDA.",
            next_step="install g++ (apt-get install g++ ninja-build), or set optimizer.bias_correction=true",
        )
    return name


def make_optimizer(name: str, model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer in the implementation `name`, as `optimizer_name` gives it.

    Its groups hold, besides what the class needs, `lr_scale` (share of the learning rate) and `sizes` (name and
    elements of each parameter, in order), which checkpoints then hold too. The learning rate is 0 until an update sets
    it, because DeepSpeed makes an update of its own at the start of mixed precision without ZeRO.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = decay_groups(model, config.weight_decay, config.layer_decay)
    for group in groups:
        group["sizes"] = [(names[parameter], parameter.numel()) for parameter in group["params"]]
    if name in _OF_TORCH:
        return _CLASSES[name](groups, lr=0.0, **KINDS[config.kind].settings(config))
    with compile_lock(), known_processor(operator_directory()):
        return _CLASSES[name](groups, lr=0.0, **KINDS[config.kind].settings(config))


def forget_beta_powers(optimizer: torch.optim.Optimizer) -> None:
    """Make the next update's bias correction a function of its step number alone. To be called before it.

    DeepSpeed's CPU Adam keeps beta**step as a running float32 product inside its C++ object; no checkpoint
    holds it, and after a resumption it is computed by `pow`, which differs in the last bits. An update of a
    dummy under a step number that no run reaches makes it compute `pow` every time.
    """
    update = getattr(getattr(optimizer, "ds_opt_adam", None), "adam_update", None)
    if update is None:
        return
    group = optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    dummies = [torch.zeros(1) for _ in range(4)]
    update(
        optimizer.opt_id,  # pyright: ignore[reportAttributeAccessIssue]
        _UNREACHED_STEP,
        0.0,
        beta1,
        beta2,
        group["eps"],
        0.0,
        True,
        *dummies,
    )


def _adamw(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, fused=True, **settings)


def _fused_adam(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import FusedAdam

    return FusedAdam(groups, adam_w_mode=True, **settings)


def _cpu_adam(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(groups, adamw_mode=True, **settings)


def _fused_lion(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.lion import FusedLion

    return FusedLion(groups, **settings)


def _cpu_lion(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.lion import DeepSpeedCPULion

    return DeepSpeedCPULion(groups, **settings)


def _fused_lamb(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.lamb import FusedLamb

    return FusedLamb(groups, **settings)


def _lamb(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from pipeline.optimizers.torch_optimizers import Lamb

    return Lamb(groups, **settings)


def _cpu_adagrad(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

    return DeepSpeedCPUAdagrad(groups, **settings)


def _adagrad(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    from pipeline.optimizers.torch_optimizers import Adagrad

    return Adagrad(groups, **settings)


_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": _adamw,
    "FusedAdam": _fused_adam,
    "DeepSpeedCPUAdam": _cpu_adam,
    "FusedLion": _fused_lion,
    "DeepSpeedCPULion": _cpu_lion,
    "FusedLamb": _fused_lamb,
    "Lamb": _lamb,
    "DeepSpeedCPUAdagrad": _cpu_adagrad,
    "Adagrad": _adagrad,
}
