"""The DeepSpeed engine: its explicit configuration, the optimizer, and compiling it without surprises."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cluster.errors import ConfigError
from cluster.operators import compile_lock, has_compiler
from models.backends import Choice, choose_backend, use_backend
from models.config import NetworkConfig
from models.transformer import Transformer
from models.weights import decay_groups
from pipeline.pretrain.config import PretrainConfig
from pipeline.pretrain.settings import OptimizerConfig

_QUIET = 10**9
"""Steps between DeepSpeed's own progress lines: never."""
_UNREACHED_STEP = 2**31


def deepspeed_config(config: PretrainConfig, world_size: int, *, universal: bool = False) -> dict[str, Any]:
    """DeepSpeed's configuration in concrete numbers; nothing is left to `auto`.

    Args:
        universal: the checkpoint to be loaded was converted for another number of workers.
    """
    batch = config.batch
    return {
        "train_batch_size": batch.samples,
        "train_micro_batch_size_per_gpu": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.samples // (batch.micro_batch_size * world_size),
        "gradient_clipping": config.optimizer.clip,
        "bf16": {"enabled": config.precision == "bf16"},
        "zero_optimization": {
            "stage": config.zero.stage,
            "contiguous_gradients": True,
            # Overlapped reduction adds gradients in the order in which they arrive; exactness comes first.
            "overlap_comm": False,
            # Small parameters are kept whole only for speed; with few workers sharding them costs nothing.
            "stage3_param_persistence_threshold": 0,
        },
        "checkpoint": {"load_universal": universal},
        "steps_per_print": _QUIET,
        "wall_clock_breakdown": False,
    }


def optimizer_name() -> str:
    """The optimizer that this machine gets: DeepSpeed's FusedAdam on CUDA, its compiled CPU Adam, or torch's."""
    if torch.cuda.is_available():
        return "FusedAdam"
    return "DeepSpeedCPUAdam" if has_compiler() else "AdamW"


def make_optimizer(name: str, model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW in the implementation `name`, as `optimizer_name` gives it."""
    groups = decay_groups(model, config.weight_decay)
    common = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    if name == "AdamW":
        return torch.optim.AdamW(groups, fused=True, **common)
    with compile_lock():
        if name == "FusedAdam":
            from deepspeed.ops.adam import FusedAdam

            return FusedAdam(groups, adam_w_mode=True, **common)
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **common)


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


def initialize(
    model: nn.Module,
    config: PretrainConfig,
    world_size: int,
    optimizer: torch.optim.Optimizer,
    *,
    universal: bool,
) -> Any:
    """`deepspeed.initialize` for this rank; returns the engine."""
    import deepspeed

    # Its shared-memory collectives serve inference alone; compiling them would cost each machine's first start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=deepspeed_config(config, world_size, universal=universal),
        dist_init_required=False,
    )
    return engine


def prepare_network(
    model: nn.Module, shape: NetworkConfig, config: PretrainConfig, device: torch.device
) -> Choice:
    """Set how the network is computed: attention kernel, recomputation, compilation. Returns the kernel chosen.

    Raises:
        ConfigError: the kernel that the configuration asks for cannot work here.
    """
    compute = config.compute
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    try:
        choice = choose_backend(shape, compute.attention_backend, device=device, dtype=dtype)
    except ValueError as error:
        raise ConfigError(str(error), next_step="set compute.attention_backend=auto") from None
    use_backend(model, choice)
    for module in model.modules():
        if isinstance(module, Transformer):
            module.gradient_checkpointing = compute.gradient_checkpointing
    if compute.compile:
        model.compile()
    return choice


def consolidated_weights(engine: Any) -> dict[str, torch.Tensor] | None:
    """float32 weights of the whole network on rank 0, None elsewhere. All ranks must call it."""
    if engine.zero_optimization_stage() == 3:
        state = engine._zero3_consolidated_16bit_state_dict()
    else:
        state = engine.module.state_dict()
    if torch.distributed.get_rank() != 0:
        return None
    assert state is not None
    return {name: tensor.detach().float().cpu().contiguous() for name, tensor in state.items()}
