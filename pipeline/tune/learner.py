"""The processes of a training, one or as many as `accelerate launch` or `torchrun` started, and a network with its
optimizer in them: whole in every process, or sharded among the processes by DeepSpeed ZeRO.

All processes call the methods of a learner together. An update is a `micro_batch` with a `backward` for each round, and
then `update`.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, convert_outputs_to_fp32
from torch import Tensor, nn

from cluster.artefacts.errors import ConfigError
from cluster.collectives import GROUP_TIMEOUT_S
from cluster.group import Rank
from models.weights import with_prefix
from pipeline.engine.interface import WEIGHTS, EngineSettings
from pipeline.run.shared_settings import ZeroConfig
from pipeline.tasks.settings import Precision, TrainingConfig, optimizer_with_rates
from pipeline.tune.config import FinetuneConfig

Result = TypeVar("Result")

MIXED_PRECISION: dict[Precision, str] = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's names of the precisions."""


_SHARDING = "leave the option out, and set zero.stage=2 (or 1, 3) to shard the training among processes"
_LAUNCHER_SETTINGS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "ACCELERATE_USE_FSDP": ("--use_fsdp", ("", "false", "no"), _SHARDING),
    "ACCELERATE_USE_DEEPSPEED": ("--use_deepspeed", ("", "false", "no"), _SHARDING),
    "ACCELERATE_USE_MEGATRON_LM": ("--use_megatron_lm", ("", "false", "no"), _SHARDING),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "--gradient_accumulation_steps",
        ("", "1"),
        "leave it out, and set training.micro_batch_size: batches of training.batch_size are accumulated from it",
    ),
    "ACCELERATE_DYNAMO_BACKEND": (
        "--dynamo_backend",
        ("", "no"),
        "set it to no: networks are not compiled here",
    ),
}
"""By variable of `accelerate launch`: the option, the values that change nothing, and what to do about others."""
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def check_launch(config: FinetuneConfig, environment: Mapping[str, str]) -> None:
    """Check that a launcher started as many processes as it was asked for, and asks for nothing else than `config`.

    Raises:
        ConfigError: it did not, or does; all differences are named.
    """
    problems = []
    several = "ACCELERATE_USE_CPU" in environment and "MASTER_ADDR" in environment
    if several and not any(name in environment for name in _RANK_VARIABLES):
        problems.append(
            (
                "accelerate launch was asked for several processes and started one: with --cpu it starts more by MPI"
                " only.",
                "accelerate launch --multi_gpu --num_processes N (which also works on CPUs), or"
                " torchrun --nproc_per_node N; for one process, unset MASTER_ADDR",
            )
        )
    for variable, (option, harmless, next_step) in _LAUNCHER_SETTINGS.items():
        if (value := environment.get(variable, "")).lower() not in harmless:
            problem = f"accelerate launch sets {option} ({variable}={value}), which fine-tuning does not use."
            problems.append((problem, next_step))
    wanted, own = environment.get("ACCELERATE_MIXED_PRECISION", "no"), MIXED_PRECISION[config.precision]
    if wanted not in ("no", own):
        problem = f"accelerate launch sets --mixed_precision {wanted}, the configuration precision: {config.precision}."
        problems.append((problem, f"add precision={wanted}, or launch with --mixed_precision {own}"))
    if problems:
        raise ConfigError(
            "\n".join(found for found, _ in problems), next_step="; ".join(step for _, step in problems)
        )


def make_accelerator(config: FinetuneConfig) -> Accelerator:
    """Join the other processes, choose the device and the number of threads.

    Raises:
        ConfigError: the machine cannot compute in the precision, or as `check_launch`.
    """
    check_launch(config, os.environ)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    # Without `cpu` on machines without GPUs, Accelerate takes each of several processes for the only one.
    cpu = not torch.accelerator.is_available()
    if cpu and config.precision == "fp16":
        raise ConfigError(
            "precision: fp16 needs a GPU, and this machine has none.",
            next_step="set precision=fp32, or precision=bf16 on processors that compute in it",
        )
    return Accelerator(
        cpu=cpu,
        mixed_precision=MIXED_PRECISION[config.precision],
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=GROUP_TIMEOUT_S))],
    )


def on_first(accelerator: Accelerator, action: Callable[[], Result]) -> Result:
    """Call `action` in the first process, and return its (picklable) result in all of them.

    An error is raised in every process, so that no process waits for one that failed.
    """
    found: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            found[0] = action()
        except Exception as error:
            found[1] = error
    if accelerator.num_processes > 1:
        broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]


class PlainLearner:
    """Every process holds all weights and all of the optimizer's state."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, settings: TrainingConfig) -> None:
        self._accelerator = accelerator
        self._model = model
        # Frozen weights are left out. Rates are 0 until an update sets them.
        self._optimizer = optimizer_with_rates(settings).make(model)
        self._clip = settings.optimizer.clip or math.inf
        self._network, self._prepared = accelerator.prepare(model, self._optimizer)

    @property
    def network(self) -> nn.Module:
        """The network as it is called in training, with dropout once `train()` was called on it."""
        return self._network

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward pass of a micro-batch; gradients are exchanged in the last one."""
        if last:
            yield
        else:
            with self._accelerator.no_sync(self._network):
                yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss; they are averaged over the processes."""
        self._accelerator.backward(loss)

    def update(self, rate: float) -> float | None:
        """Clip the gradients, update the weights and drop the gradients.

        Returns:
            The norm of the gradients before clipping; nothing is updated where it is not finite. None with fp16, whose
            scaler skips such updates by itself.
        """
        for group in self._prepared.param_groups:
            group["lr"] = rate * group["lr_scale"]
        found = self._accelerator.clip_grad_norm_(self._network.parameters(), self._clip)
        norm = None if found is None or self._accelerator.scaler is not None else float(found)
        if norm is None or math.isfinite(norm):
            self._prepared.step()
        self._prepared.zero_grad()
        return norm

    def whole(self) -> nn.Module:
        """The network with whole weights, for evaluations and for files."""
        return self._network

    def tensors(self) -> dict[str, Tensor]:
        """`model.NAME` and `optimizer.NUMBER.KEY` of every weight, complete in the first process."""
        found = {f"model.{name}": tensor for name, tensor in self._model.state_dict().items()}
        for number, entry in self._optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in entry.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave, on any number of processes and sharded or not."""
        self._model.load_state_dict(with_prefix(tensors, "model."))
        # Copied: load_state_dict changes the groups it is given.
        groups = [dict(group) for group in self._optimizer.state_dict()["param_groups"]]
        self._optimizer.load_state_dict({"state": _optimizer_state(tensors), "param_groups": groups})

    def close(self) -> None:
        """Release memory."""
        self._network, self._prepared = cast(
            tuple, self._accelerator.free_memory(self._network, self._prepared)
        )


class ShardedLearner:
    """One engine in each process; files hold whole tensors, so that a training can continue in any stage or without
    ZeRO."""

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, settings: TrainingConfig, zero: ZeroConfig
    ) -> None:
        """
        Args:
            model: in host memory, the same in every process.
        """
        # DeepSpeed takes seconds to import.
        from pipeline.engine.deepspeed.engine import Engine

        if not dist.is_initialized():
            # DeepSpeed wants a process group also where one process is all.
            backend = "nccl" if accelerator.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
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
        optimizer = optimizer_with_rates(settings)
        # Names of the trained parameters in the order of their state in torch.
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = optimizer.make(model).param_groups
        self._names = [names[parameter] for group in groups for parameter in group["params"]]
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
        weights, state = with_prefix(tensors, "model."), _optimizer_state(tensors)
        if self._copy is None:
            self._model.load_state_dict(weights)
        numbered = enumerate(self._names)
        self._engine.fill({name: {WEIGHTS: weights[name]} | state[number] for number, name in numbered})

    def close(self) -> None:
        self._engine.close()


Learner = PlainLearner | ShardedLearner


def _optimizer_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Any]]:
    """The optimizer's state by index of the parameter, from `tensors` of a learner."""
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in with_prefix(tensors, "optimizer.").items():
        number, _, name = key.partition(".")
        # A step that is counted as a Python number is one again: its powers are of double precision.
        counted = tensor.dim() == 0 and not tensor.is_floating_point()
        state.setdefault(int(number), {})[name] = tensor.item() if counted else tensor
    return state


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
