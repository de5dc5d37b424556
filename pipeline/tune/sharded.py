"""A network whose weights, gradients and optimizer state are shared out among the processes by DeepSpeed ZeRO."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn

from cluster.group import Rank
from models.weights import with_prefix
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.interface import WEIGHTS, EngineSettings
from pipeline.run.settings import ZeroConfig
from pipeline.tune.learner import Learner, optimizer_state
from pipeline.tune.settings import TrainingConfig


class ShardedLearner(Learner):
    """One engine in each process; files hold whole tensors, so that a training goes on in any stage or without ZeRO."""

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, settings: TrainingConfig, zero: ZeroConfig
    ) -> None:
        """
        Args:
            model: in host memory, the same in every process.
        """
        _join_alone(accelerator)
        # ZeRO-3 empties the network's own tensors.
        self._copy = copy.deepcopy(model) if zero.stage == 3 else None
        self._model = model.to(accelerator.device)
        if accelerator.mixed_precision == "bf16":
            autocast = torch.autocast(accelerator.device.type, torch.bfloat16)
            model.forward = convert_outputs_to_fp32(autocast(model.forward))
        rank = Rank(
            accelerator.process_index,
            accelerator.num_processes,
            accelerator.local_process_index,
            torch.get_num_threads(),
        )
        optimizer = settings.optimizer_with_rates
        self._names = _names_in_order(optimizer.make(model), model)
        self._rank = rank
        with _local_rank(rank):
            # Weights are float32; the forward pass is autocast, as without ZeRO.
            self._engine = Engine(model, EngineSettings(zero, optimizer), rank)
        self._last = True

    @property
    def network(self) -> nn.Module:
        return self._engine.network

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        self._last = last
        with _local_rank(self._rank):
            yield

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, last=self._last)

    def update(self, rate: float) -> float | None:
        return self._engine.update(rate).grad_norm

    def whole(self) -> nn.Module:
        if self._copy is None:
            return self._model
        whole = self._engine.gather(to_all=True, with_state=False)
        network = copy.deepcopy(self._copy)
        # Buffers, and other names of tied weights, are the copy's own.
        network.load_state_dict({name: found[WEIGHTS] for name, found in whole.items()}, strict=False)
        return network.to(self._engine.device)

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": tensor for name, tensor in self.whole().state_dict().items()}
        whole = self._engine.gather(to_all=False, with_state=True)
        for number, name in enumerate(self._names):
            state = {key: value for key, value in whole[name].items() if key != WEIGHTS}
            found |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        weights, state = with_prefix(tensors, "model."), optimizer_state(tensors)
        if self._copy is None:
            self._model.load_state_dict(weights)
        numbered = enumerate(self._names)
        self._engine.fill({name: {WEIGHTS: weights[name]} | state[number] for number, name in numbered})

    def close(self) -> None:
        self._engine.close()


def _names_in_order(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Names of the trained parameters in the order in which torch numbers their state."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


@contextmanager
def _local_rank(rank: Rank) -> Iterator[None]:
    """Set the variable of launchers that DeepSpeed reads at its start and in ZeRO-3, also in a process that
    none started."""
    launched = "LOCAL_RANK" in os.environ
    os.environ.setdefault("LOCAL_RANK", str(rank.local_rank))
    try:
        yield
    finally:
        if not launched:
            del os.environ["LOCAL_RANK"]


def _join_alone(accelerator: Accelerator) -> None:
    """Make the process group that DeepSpeed wants also where one process is all."""
    if not dist.is_initialized():
        backend = "nccl" if accelerator.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
