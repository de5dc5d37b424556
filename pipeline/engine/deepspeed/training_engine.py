"""The DeepSpeed engine: its explicit configuration, and updates that are made, or skipped, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cluster.artefacts.errors import ConfigError
from cluster.train_group import Rank
from models.backends import Choice, choose_backend, use_backend
from models.config import NetworkConfig
from models.transformer import Transformer
from pipeline.engine.deepspeed.kernels import forget_beta_powers, make_kernel, optimizer_name
from pipeline.engine.deepspeed.lean_imports import do_without_compiler
from pipeline.engine.deepspeed.nvme import (
    PARAMETER_BUFFERS,
    STATE_BUFFERS,
    SUB_GROUP_ELEMENTS,
    SwapDirectory,
    load_operator,
    places_on_disk,
    require_disks,
    require_lockable,
)
from pipeline.engine.deepspeed.saved_state import SavedState
from pipeline.engine.deepspeed.shards import clear_padding
from pipeline.engine.deepspeed.swapped import forget_gradients, reserve
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.ema import Averaging
from pipeline.engine.fragments import AVERAGE
from pipeline.engine.restoring import restore
from pipeline.runs.config import PretrainConfig
from pipeline.runs.settings import OffloadConfig, ZeroConfig

_QUIET = 10**9
"""Steps between DeepSpeed's own progress lines: never."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEEPSPEED_DIRECTORY = "deepspeed"
"""Directory of a checkpoint that holds DeepSpeed's files."""


@dataclass(frozen=True, slots=True)
class Update:
    """What became of an update."""

    grad_norm: float
    """Global norm of the gradient before clipping; NaN when the update was discarded, infinite when it overflowed."""
    applied: bool
    """Whether weights changed."""
    loss_scale: float | None
    """Of the next update; None unless losses are scaled (fp16)."""


class TrainingEngine:
    """One rank's network and optimizer under DeepSpeed.

    An update is `__call__` and `backward` for each micro-batch, the last one with `last=True`, and then `update`. How
    many micro-batches there are may differ from update to update, but not between ranks.
    """

    def __init__(self, model: nn.Module, config: PretrainConfig, rank: Rank, run: Path = Path("run")) -> None:
        """
        Args:
            model: with its initial weights, the same on every rank.
            run: the run's directory, by which its own on local disks is named, where state is offloaded there.

        Raises:
            ConfigError: the precision, optimizer or offload cannot work on this machine.
            StorageError: the local disks have no room for what is offloaded to them.
        """
        require_hardware(config)
        self.optimizer_name = optimizer_name(config)
        do_without_compiler()
        self._optimizer = config.optimizer.make(self.optimizer_name, model, make_kernel)
        self._swap = SwapDirectory(config.zero, run, rank)
        self.deepspeed = initialize(model, config, rank.world_size, self._optimizer, self._swap)
        state = config.optimizer.state(on_cuda=False)
        reserve(self.deepspeed.optimizer, [*state, *([AVERAGE] if config.ema is not None else [])])
        if config.zero.stage == 3:
            clear_padding(self.deepspeed)
        self.device: torch.device = self.deepspeed.device
        self._clip = config.optimizer.clip or 0.0
        without_zero = config.zero.stage == 0
        # DeepSpeed clips, skips and scales losses by itself, but not everywhere without ZeRO.
        self._clips = without_zero and config.precision == "fp32"
        self._scales = without_zero and config.precision == "fp16"
        self._has_loss_scale = config.precision == "fp16"
        if without_zero and config.precision != "fp32":
            # DeepSpeed made an update with zero gradients, at a learning rate of 0.
            self._optimizer.state.clear()
        if without_zero and rank.world_size == 1:
            # It would flatten all gradients, reduce them over one rank, and copy them back.
            self.deepspeed.enable_backward_allreduce = False
        self._averages = config.ema is not None
        if config.ema is not None:
            Averaging(self._optimizer, config.ema.decay)

    def __call__(self, **tensors: Tensor) -> Any:
        """Forward pass; returns what the network returns."""
        return self.deepspeed(**tensors)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of a micro-batch's loss.

        Args:
            loss: scalar. Its gradients are added over micro-batches and averaged over ranks.
            last: of this update; gradients are complete and reduced afterwards.
        """
        self.deepspeed.set_gradient_accumulation_boundary(last)
        if self._scales:
            loss = loss * self.deepspeed.optimizer.loss_scale
        self.deepspeed.backward(loss, scale_wrt_gas=False)

    def update(self, rate: float, *, discard: bool = False) -> Update:
        """Update the weights, unless `discard` is given or the gradient's norm is not finite.

        An update that is not made leaves weights, optimizer state, step numbers and the average as they were, bit for
        bit; the gradients are gone. All ranks decide alike, when all give the same `discard`.

        Args:
            rate: learning rate of optimizer groups whose `lr_scale` is 1.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        if discard:
            clear_gradients(self.deepspeed)
            return Update(math.nan, False, self._loss_scale())
        forget_beta_powers(self._optimizer)
        if self._clips:
            return self._clipped_update()
        scale = self._loss_scale()
        self.deepspeed.step()
        norm = float(self.deepspeed.get_global_grad_norm())
        if hasattr(self.deepspeed.optimizer, "fp32_groups") and scale is not None:
            norm /= scale
        applied = self.deepspeed.was_step_applied()
        if not applied:
            forget_gradients(self.deepspeed.optimizer)
        return Update(norm, applied, self._loss_scale())

    def close(self) -> None:
        """Delete what lies on local disks; the engine cannot be used any more."""
        self._swap.remove()

    def load(self, directory: Path) -> None:
        """Take over the state in a checkpoint's directory, at any time; all ranks must call it.

        Any number of workers and any ZeRO stage may have saved it. As many workers in the same stage go on bit for bit;
        others up to the order of sums.

        Raises:
            ResumeRefusedError: the checkpoint has not all parameters of the network.
            CorruptCheckpointError: a file is missing, or is not what DeepSpeed writes.
        """
        clear_gradients(self.deepspeed)
        leave_out = () if self._averages else (AVERAGE,)
        restore(self.deepspeed, SavedState(directory / DEEPSPEED_DIRECTORY), leave_out=leave_out)

    def train(self) -> None:
        """Switch to training: dropout is on."""
        self.deepspeed.train()

    def eval(self) -> None:
        """Switch to evaluation: dropout is off."""
        self.deepspeed.eval()

    def _clipped_update(self) -> Update:
        """An update in float32 without ZeRO, where DeepSpeed does not look at the norm before it uses it."""
        parameters = [p for p in self.deepspeed.module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        found = norm.item()
        if math.isfinite(found):
            if self._clip:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
            self.deepspeed.step()
        else:
            clear_gradients(self.deepspeed)
        return Update(found, math.isfinite(found), None)

    def _loss_scale(self) -> float | None:
        return float(self.deepspeed.optimizer.loss_scale) if self._has_loss_scale else None


def clear_gradients(engine: Any) -> None:
    """Forget all gradients since the last update, as DeepSpeed itself does after an overflow.

    Args:
        engine: a DeepSpeedEngine.
    """
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    engine.zero_grad()
    if stage in (1, 2):
        optimizer.zero_grad(set_to_none=True)
        # The next backward pass must not add to what lies in the buffers.
        optimizer.micro_step_id = -1
        if optimizer.cpu_offload:
            optimizer._offload_accumulated_param_ids = set()
            optimizer.reset_cpu_buffers()
        for group in optimizer.averaged_gradients:
            optimizer.averaged_gradients[group] = None
            optimizer.all_grad_tensors[group] = None
    elif stage == 3:
        optimizer._pre_step()
        optimizer._partition_all_parameters()
        optimizer._overflow_clean_up(optimizer.loss_scale)
        forget_gradients(optimizer)


def require_hardware(config: PretrainConfig) -> None:
    """Raise ConfigError unless this machine can compute in the run's precision and keep its state."""
    require_disks(config.zero)
    parameters = config.zero.offload_parameters
    on_disk = parameters is not None and parameters.device == "nvme"
    if on_disk and config.precision != "bf16" and not trains_on_cuda():
        raise ConfigError(
            f"zero.offload_parameters.device nvme needs precision bf16 on CPUs, not {config.precision}: DeepSpeed keeps"
            " parameters on disk in bf16 there, whatever they are.",
            next_step="set precision=bf16, or zero.offload_parameters.device=cpu",
        )
    if config.precision == "fp16" and not trains_on_cuda():
        raise ConfigError(
            "precision fp16 needs CUDA: CPUs have no kernels for it.",
            next_step="set precision=bf16, which needs no scaling of losses, or precision=fp32",
        )


def deepspeed_config(
    config: PretrainConfig, world_size: int, swap: SwapDirectory | None = None, largest_share: int = 0
) -> dict[str, Any]:
    """DeepSpeed's configuration in concrete numbers; nothing is left to `auto`.

    Args:
        swap: where to; needed where something is offloaded to local disks.
        largest_share: elements of the largest parameter that a rank keeps; needed where those are parameters.
    """
    batch, zero = config.batch, config.zero
    return {
        # The caller says which micro-batch is the last of an update; batches of different steps differ in size.
        "train_batch_size": batch.micro_batch_size * world_size,
        "train_micro_batch_size_per_gpu": batch.micro_batch_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0
        if zero.stage == 0 and config.precision == "fp32"
        else config.optimizer.clip or 0.0,
        "bf16": {"enabled": config.precision == "bf16"},
        "fp16": {"enabled": config.precision == "fp16", "loss_scale": 0, "initial_scale_power": 16},
        "zero_optimization": {
            "stage": zero.stage,
            "contiguous_gradients": True,
            # Overlapped reduction adds gradients in the order in which they arrive; exactness comes first.
            "overlap_comm": False,
            "reduce_bucket_size": zero.reduce_bucket_elements,
            "allgather_bucket_size": zero.reduce_bucket_elements,
            # Small parameters are kept whole only for speed; with few workers sharding them costs nothing.
            "stage3_param_persistence_threshold": 0,
            "sub_group_size": SUB_GROUP_ELEMENTS,
            **_offload(zero, swap, largest_share),
        },
        # Offloaded optimizers may be torch's own, where there is no compiler.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": _QUIET,
        "wall_clock_breakdown": False,
    }


def _offload(zero: ZeroConfig, swap: SwapDirectory | None, largest_share: int) -> dict[str, Any]:
    """DeepSpeed's settings of what is kept elsewhere."""
    optimizer, parameters = zero.offload_optimizer, zero.offload_parameters
    settings: dict[str, Any] = {}
    if optimizer is not None:
        settings["offload_optimizer"] = _place(optimizer, swap) | {"buffer_count": STATE_BUFFERS}
    if parameters is not None:
        settings["offload_param"] = _place(parameters, swap)
    if parameters is not None and parameters.device == "nvme":
        buffers = {"buffer_count": PARAMETER_BUFFERS, "buffer_size": largest_share, "max_in_cpu": 0}
        settings["offload_param"] |= buffers
        # A parameter that is kept for its next use keeps its buffer, and DeepSpeed ends where there are no more.
        settings["stage3_max_reuse_distance"] = 0
    return settings


def _place(place: OffloadConfig, swap: SwapDirectory | None) -> dict[str, Any]:
    section: dict[str, Any] = {"device": place.device, "pin_memory": trains_on_cuda()}
    if place.device == "cpu":
        return section
    assert swap is not None
    return section | {"nvme_path": str(swap.of(place))}


def initialize(
    model: nn.Module,
    config: PretrainConfig,
    world_size: int,
    optimizer: torch.optim.Optimizer,
    swap: SwapDirectory,
) -> Any:
    """`deepspeed.initialize` for this rank; returns the engine."""
    import deepspeed

    # Its shared-memory collectives serve inference alone; compiling them would cost each machine's first start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    shares = [-(-parameter.numel() // world_size) for parameter in model.parameters()]
    if any(places_on_disk(config.zero)):
        sub_group = min(sum(shares), SUB_GROUP_ELEMENTS + max(shares))
        # Masters, gradients, two moments and the average have files of their own.
        optimizer_bytes = 4 * (STATE_BUFFERS - (config.ema is None))
        swap.require_room(config.zero.offload_optimizer, optimizer_bytes * sum(shares))
        swap.require_room(config.zero.offload_parameters, _DTYPES[config.precision].itemsize * sum(shares))
        require_lockable(4 * (STATE_BUFFERS * sub_group + PARAMETER_BUFFERS * max(shares)))
        load_operator()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=deepspeed_config(config, world_size, swap, max(shares)),
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
    try:
        choice = choose_backend(
            shape, compute.attention_backend, device=device, dtype=_DTYPES[config.precision]
        )
    except ValueError as error:
        raise ConfigError(str(error), next_step="set compute.attention_backend=auto") from None
    use_backend(model, choice)
    for module in model.modules():
        if isinstance(module, Transformer):
            module.gradient_checkpointing = compute.gradient_checkpointing
    if compute.compile:
        model.compile()
    return choice
