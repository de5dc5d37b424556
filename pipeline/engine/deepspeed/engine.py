"""The training engine, on DeepSpeed: ZeRO stages 0 to 3, and updates that are applied or skipped exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cluster.group import Rank
from pipeline.engine.deepspeed.configuration import initialize, require_hardware
from pipeline.engine.deepspeed.live_state import capture, fill, gather, restore
from pipeline.engine.deepspeed.masters import clear_padding, has_whole_gradients, own_masters
from pipeline.engine.deepspeed.saved_state import SavedState
from pipeline.engine.interface import EngineSettings, ParameterSlice, Update, WholeState


class Engine:
    """One rank's network and optimizer.

    An update is `__call__` and `backward` for each micro-batch, the last one with `last=True`, and then `update`. The
    number of micro-batches may differ between updates, but not between ranks.
    """

    def __init__(self, model: nn.Module, settings: EngineSettings, rank: Rank) -> None:
        """Give a rank's network to DeepSpeed, with the same initial weights on every rank. All ranks must call it.

        Raises:
            ConfigError: the precision or the optimizer cannot work here, or this version of DeepSpeed was not tested.
        """
        require_hardware(settings)
        self._optimizer = settings.optimizer.make(model)
        self.deepspeed = initialize(model, settings, rank.world_size, self._optimizer)
        if settings.zero.stage == 3:
            clear_padding(self.deepspeed)
        self.device: torch.device = self.deepspeed.device
        self._clip = settings.optimizer.clip or 0.0
        without_zero = settings.zero.stage == 0
        # DeepSpeed clips, skips and scales losses by itself, but not everywhere without ZeRO.
        self._clips = without_zero and settings.precision == "fp32"
        self._scales = without_zero and settings.precision == "fp16"
        self._has_loss_scale = settings.precision == "fp16"
        if without_zero and settings.precision != "fp32":
            # DeepSpeed made an update with zero gradients, at a learning rate of 0.
            self._optimizer.state.clear()
            # Here it keeps gradients where torch adds them up, and refuses a `grad_accum_dtype`.
            for parameter in trained_parameters(self.deepspeed):
                parameter.grad, parameter.grad_dtype = None, torch.float32
        self._reduces = without_zero and rank.world_size > 1
        if without_zero or (rank.world_size == 1 and has_whole_gradients(self.deepspeed.optimizer)):
            # One rank alone would only copy its gradients to and fro; several reduce them in `backward`.
            self.deepspeed.enable_backward_allreduce = False
        self._averages = settings.ema_decay is not None
        if settings.ema_decay is not None:
            keep_average(self._optimizer, settings.ema_decay)

    def __call__(self, **tensors: Tensor) -> Any:
        """Run the forward pass; returns what the network returns."""
        return self.deepspeed(**tensors)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of a micro-batch's loss.

        Args:
            loss: scalar. Its gradients are added over micro-batches and averaged over ranks.
            last: whether this is the update's last micro-batch; gradients are complete and reduced afterwards.
        """
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
        """Update the weights, unless `discard` is given or the gradient's norm is not finite.

        A skipped update leaves weights, optimizer state, step numbers and the average as they were, bit for bit; the
        gradients are dropped. All ranks decide alike when all pass the same `discard`.

        Args:
            rate: learning rate of optimizer groups whose `lr_scale` is 1.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        if discard:
            clear_gradients(self.deepspeed)
            return Update(math.nan, False, self._loss_scale())
        if self._clips:
            return self._clipped_update()
        scale = self._loss_scale()
        self.deepspeed.step()
        applied = self.deepspeed.was_step_applied()
        if not applied and self.deepspeed.zero_optimization_stage() < 3:
            # With an offloaded optimizer, DeepSpeed would add the next gradients to those that it skipped.
            clear_gradients(self.deepspeed)
        norm = float(self.deepspeed.get_global_grad_norm())
        if self._scales and scale is not None:
            norm /= scale
        return Update(norm, applied, self._loss_scale())

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

    @property
    def network(self) -> nn.Module:
        """The network as `__call__` runs it."""
        return self.deepspeed

    def train(self) -> None:
        """Switch to training: dropout is on."""
        self.deepspeed.train()

    def eval(self) -> None:
        """Switch to evaluation: dropout is off."""
        self.deepspeed.eval()

    def slices(self, kind: Literal["weights", "average"]) -> Iterator[ParameterSlice]:
        """This rank's share of the float32 master weights, or of their moving average; no copies, no communication.

        Over all ranks every element of every parameter comes exactly once. In ZeRO stage 0, where all ranks hold
        everything, rank 0 yields all of it. Before the first update the average equals the weights.
        """
        if self.deepspeed.zero_optimization_stage() == 0 and self.deepspeed.global_rank != 0:
            return
        for master in own_masters(self.deepspeed):
            tensor = master.weights if kind == "weights" else master.state.get(AVERAGE, master.weights)
            flat = tensor.detach().view(-1)
            for extent in master.extents:
                yield ParameterSlice(extent.name, extent.start, flat.narrow(0, extent.offset, extent.size))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every whole parameter by name, in the network's order."""
        module = self.deepspeed.module
        assert next(module.buffers(), None) is None, "the weights' file would lack a buffer of the network"
        # ZeRO-3 leaves tensors empty, and keeps their shapes beside them.
        return {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in module.named_parameters()
        }

    def capture(self, copy: Callable[[Any], Any]) -> tuple[dict[str, Any], Exception | None]:
        """Collect the state that `restore` needs, as copies. All ranks must call it, between two updates.

        Args:
            copy: returns a copy of a tree of tensors and plain values.

        Returns:
            The contents to write with `torch.save` by file name, as this rank writes them; and what failed, with which
            they are incomplete. It is not raised, because the other ranks may already wait in a collective.
        """
        return capture(self.deepspeed, copy)

    def restore(self, directory: Path) -> None:
        """Restore weights, optimizer state and loss scale in place, at any time. All ranks must call it.

        Any number of ranks in any ZeRO stage may have saved the state. The same number of ranks in the same stage
        continues bit for bit; others up to the order of floating-point sums.

        Args:
            directory: holds the files of `capture` of all ranks.

        Raises:
            ResumeRefusedError: the files lack parameters of the network.
            CorruptCheckpointError: a file is missing or damaged, or was not written by DeepSpeed.
        """
        clear_gradients(self.deepspeed)
        restore(self.deepspeed, SavedState(directory), leave_out=() if self._averages else (AVERAGE,))

    def gather(self, *, to_all: bool, with_state: bool) -> WholeState:
        """Collect the trained parameters as whole tensors in host memory. All ranks must call it, between two updates.

        Args:
            to_all: whether all ranks get the tensors; otherwise only rank 0.
            with_state: whether the optimizer's state comes with the weights.
        """
        return gather(self.deepspeed, to_all=to_all, with_state=with_state)

    def fill(self, whole: WholeState) -> None:
        """Overwrite weights and optimizer state with those of `gather`, from any number of ranks in any stage."""
        clear_gradients(self.deepspeed)
        fill(self.deepspeed, whole)

    def close(self) -> None:
        """Release memory and hooks. The engine is not used afterwards."""
        self.deepspeed.destroy()


def clear_gradients(engine: Any) -> None:
    """Drop all gradients of a DeepSpeedEngine since the last update, as it does itself after an overflow."""
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


AVERAGE = "ema"
"""Key of the moving average in the optimizer's state."""


def keep_average(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Make an optimizer keep a moving average of its master weights in its state, under the key `AVERAGE`.

    The averages are float32 and change with every applied update only. They lie where the master weights lie: sharded
    by every ZeRO stage, saved and loaded with the moments. An average starts as the weights before the first update.
    """
    move = get_ema_multi_avg_fn(decay)
    initial: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def keep_initial(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        # Optimizers create their state if it is empty, so the average can only be added after their update.
        new = [master for master in _updated(optimizer) if AVERAGE not in optimizer.state[master]]
        initial.update({master: master.detach().clone() for master in new})

    @torch.no_grad()
    def average(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        for master, weights in initial.items():
            optimizer.state[master][AVERAGE] = weights
        initial.clear()
        masters = _updated(optimizer)
        move([optimizer.state[one][AVERAGE] for one in masters], [one.detach() for one in masters], 0)

    optimizer.register_step_pre_hook(keep_initial)
    optimizer.register_step_post_hook(average)


def _updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        master for group in optimizer.param_groups for master in group["params"] if master.grad is not None
    ]
