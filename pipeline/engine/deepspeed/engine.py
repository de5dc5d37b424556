"""A training engine on DeepSpeed: ZeRO stages 0 to 3, and updates that are applied or skipped exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cluster.artefacts.errors import ConfigError
from cluster.group import Rank
from pipeline.engine.averaging import AVERAGE, Averaging
from pipeline.engine.deepspeed.capture import capture
from pipeline.engine.deepspeed.kernels import forget_beta_powers, make_kernel, optimizer_name
from pipeline.engine.deepspeed.masters import clear_padding, has_whole_gradients, own_masters
from pipeline.engine.deepspeed.process_effects import prepare_process
from pipeline.engine.deepspeed.restoring import restore
from pipeline.engine.deepspeed.saved_state import SavedState
from pipeline.engine.deepspeed.whole_state import fill, gather
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import (
    SUB_GROUP_ELEMENTS,
    Captured,
    EngineConfig,
    ParameterSlice,
    TrainingEngine,
    Update,
    WholeState,
)

_NEVER = 10**9
"""Steps between DeepSpeed's own progress lines."""


class ZeroEngine(TrainingEngine):
    """A DeepSpeedEngine and its optimizer, behind the interface of `TrainingEngine`."""

    def __init__(self, model: nn.Module, config: EngineConfig, rank: Rank) -> None:
        """
        Args:
            model: with its initial weights, the same on every rank.

        Raises:
            ConfigError: the precision or the optimizer cannot work on this machine.
        """
        require_hardware(config)
        self.optimizer_name = optimizer_name(config)
        prepare_process()
        self._optimizer = config.optimizer.make(self.optimizer_name, model, make_kernel)
        self.deepspeed = initialize(model, config, rank.world_size, self._optimizer)
        if config.zero.stage == 3:
            clear_padding(self.deepspeed)
        self.device = self.deepspeed.device
        self._clip = config.optimizer.clip or 0.0
        without_zero = config.zero.stage == 0
        # DeepSpeed clips, skips and scales losses by itself, but not everywhere without ZeRO.
        self._clips = without_zero and config.precision == "fp32"
        self._scales = without_zero and config.precision == "fp16"
        self._has_loss_scale = config.precision == "fp16"
        if without_zero and config.precision != "fp32":
            # DeepSpeed made an update with zero gradients, at a learning rate of 0.
            self._optimizer.state.clear()
            # Here it keeps gradients where torch adds them up, and refuses a `grad_accum_dtype`.
            for parameter in trained_parameters(self.deepspeed):
                parameter.grad, parameter.grad_dtype = None, torch.float32
        self._reduces = without_zero and rank.world_size > 1
        if without_zero or (rank.world_size == 1 and has_whole_gradients(self.deepspeed.optimizer)):
            # One rank alone would only copy its gradients to and fro; several reduce them in `backward`.
            self.deepspeed.enable_backward_allreduce = False
        self._averages = config.ema is not None
        if config.ema is not None:
            Averaging(self._optimizer, config.ema.decay)

    def __call__(self, **tensors: Tensor) -> Any:
        return self.deepspeed(**tensors)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.deepspeed.set_gradient_accumulation_boundary(last)
        if self._scales:
            loss = loss * self.deepspeed.optimizer.loss_scale
        self.deepspeed.backward(loss, scale_wrt_gas=False)
        if last and self._reduces:
            # All ranks reduce the same, and DeepSpeed would make what is missing in the precision of the weights.
            for parameter in trained_parameters(self.deepspeed):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
            self.deepspeed.allreduce_gradients()

    def update(self, rate: float, *, discard: bool = False) -> Update:
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
        applied = self.deepspeed.was_step_applied()
        if not applied and self.deepspeed.zero_optimization_stage() < 3:
            # With an offloaded optimizer, DeepSpeed would add the next gradients to those that it skipped.
            clear_gradients(self.deepspeed)
        norm = float(self.deepspeed.get_global_grad_norm())
        if hasattr(self.deepspeed.optimizer, "fp32_groups") and scale is not None:
            norm /= scale
        return Update(norm, applied, self._loss_scale())

    @property
    def network(self) -> nn.Module:
        return self.deepspeed

    def close(self) -> None:
        self.deepspeed.destroy()

    def train(self) -> None:
        self.deepspeed.train()

    def eval(self) -> None:
        self.deepspeed.eval()

    def slices(self, kind: Literal["weights", "average"]) -> Iterator[ParameterSlice]:
        if self.deepspeed.zero_optimization_stage() == 0 and self.deepspeed.global_rank != 0:
            return
        for master in own_masters(self.deepspeed):
            tensor = master.weights if kind == "weights" else master.state.get(AVERAGE, master.weights)
            flat = tensor.detach().view(-1)
            for extent in master.extents:
                yield ParameterSlice(extent.name, extent.start, flat.narrow(0, extent.offset, extent.size))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        module = self.deepspeed.module
        assert next(module.buffers(), None) is None, "the weights' file would lack a buffer of the network"
        # ZeRO-3 leaves tensors empty, and keeps their shapes beside them.
        return {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in module.named_parameters()
        }

    def capture(self, copy: Callable[[Any], Any]) -> Captured:
        return capture(self.deepspeed, copy)

    def restore(self, directory: Path) -> None:
        clear_gradients(self.deepspeed)
        restore(self.deepspeed, SavedState(directory), leave_out=() if self._averages else (AVERAGE,))

    def gather(self, *, to_all: bool, with_state: bool) -> WholeState:
        return gather(self.deepspeed, to_all=to_all, with_state=with_state)

    def fill(self, whole: WholeState) -> None:
        clear_gradients(self.deepspeed)
        fill(self.deepspeed, whole)

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
    """Drop all gradients since the last update, as DeepSpeed itself does after an overflow.

    Args:
        engine: a DeepSpeedEngine.
    """
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    engine.zero_grad()
    if stage == 1 and has_whole_gradients(optimizer):
        optimizer.zero_grad()
    elif stage in (1, 2):
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


def trained_parameters(engine: Any) -> list[nn.Parameter]:
    """The parameters of a DeepSpeedEngine's network that have gradients."""
    return [parameter for parameter in engine.module.parameters() if parameter.requires_grad]


def require_hardware(config: EngineConfig) -> None:
    """Raise ConfigError unless this machine can compute in the run's precision."""
    if config.precision == "fp16" and not trains_on_cuda():
        raise ConfigError(
            "precision fp16 needs CUDA: CPUs have no kernels for it.",
            next_step="set precision=bf16, which needs no scaling of losses, or precision=fp32",
        )


def deepspeed_config(config: EngineConfig, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration in concrete numbers; nothing is left to `auto`."""
    zero = config.zero
    offload: dict[str, Any] = {}
    for key, place in (
        ("offload_optimizer", zero.offload_optimizer),
        ("offload_param", zero.offload_parameters),
    ):
        if place is not None:
            offload[key] = {"device": place.device, "pin_memory": trains_on_cuda()}
    gradients: dict[str, Any] = {}
    if config.precision != "fp32" or zero.reduce_dtype != "fp32":
        gradients["communication_data_type"] = zero.reduce_dtype
    if config.precision != "fp32" and zero.stage:
        # A bf16 sum stays as it is when less than 1/512 of it is added.
        gradients["data_types"] = {"grad_accum_dtype": "fp32"}
    if "offload_optimizer" in offload:
        # Not used in host memory; checkpoints have always named it, and their fingerprints stay what they were.
        offload["offload_optimizer"]["buffer_count"] = 5
    return {
        # The caller says which micro-batch is the last of an update; batches of different steps differ in size.
        "train_batch_size": config.batch.micro_batch_size * world_size,
        "train_micro_batch_size_per_gpu": config.batch.micro_batch_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0
        if zero.stage == 0 and config.precision == "fp32"
        else config.optimizer.clip or 0.0,
        **gradients,
        # Read in stage 1 only: without it, all gradients would be there in bf16, too.
        "bf16": {"enabled": True, "immediate_grad_update": True}
        if config.precision == "bf16"
        else {"enabled": False},
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
            **offload,
        },
        # Offloaded optimizers may be torch's own, where there is no compiler.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
    }


def initialize(
    model: nn.Module, config: EngineConfig, world_size: int, optimizer: torch.optim.Optimizer
) -> Any:
    """Call `deepspeed.initialize` for this rank; returns the DeepSpeedEngine.

    Raises:
        ConfigError: DeepSpeed refuses the settings.
    """
    import deepspeed

    try:
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config=deepspeed_config(config, world_size),
            dist_init_required=False,
        )
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"DeepSpeed refuses the settings: {type(error).__name__}: {error}",
            next_step="change `zero`, `precision` or `optimizer`",
        ) from error
    return engine
