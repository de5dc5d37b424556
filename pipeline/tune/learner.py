"""A network that is trained by this process, or by several that each compute gradients of a share of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from models.weights import with_prefix
from pipeline.optimizers import Optimizer
from pipeline.tune.settings import TrainingConfig


class Learner(Protocol):
    """A network with its optimizer. All processes call the methods together.

    An update is a `micro_batch` with a `backward` for each round, and then `update`.
    """

    @property
    def network(self) -> nn.Module:
        """The network as it is called in training, with dropout once `train()` was called on it."""
        ...

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward pass of a micro-batch; gradients are exchanged in the last one."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss; they are averaged over the processes."""
        ...

    def update(self, rate: float) -> float | None:
        """Clip the gradients, update the weights and drop the gradients.

        Returns:
            The norm of the gradients before clipping; nothing is updated where it is not finite. None with fp16, whose
            scaler skips such updates by itself.
        """
        ...

    def whole(self) -> nn.Module:
        """The network with whole weights, for evaluations and for files."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """`model.NAME` and `optimizer.NUMBER.KEY` of every weight, complete in the first process."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave, on any number of processes and sharded or not."""
        ...

    def close(self) -> None:
        """Release memory."""
        ...


class PlainLearner(Learner):
    """Every process holds all weights and all of the optimizer's state."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, settings: TrainingConfig) -> None:
        self._accelerator = accelerator
        self._model = model
        self._optimizer = make_optimizer(model, settings.optimizer_with_rates)
        self._clip = settings.optimizer.clip or math.inf
        self._network, self._prepared = accelerator.prepare(model, self._optimizer)

    @property
    def network(self) -> nn.Module:
        return self._network

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self._accelerator.no_sync(self._network):
                yield

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def update(self, rate: float) -> float | None:
        for group in self._prepared.param_groups:
            group["lr"] = rate * group["lr_scale"]
        found = self._accelerator.clip_grad_norm_(self._network.parameters(), self._clip)
        norm = None if found is None or self._accelerator.scaler is not None else float(found)
        if norm is None or math.isfinite(norm):
            self._prepared.step()
        self._prepared.zero_grad()
        return norm

    def whole(self) -> nn.Module:
        return self._network

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": tensor for name, tensor in self._model.state_dict().items()}
        for number, entry in self._optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in entry.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(with_prefix(tensors, "model."))
        # Copied: load_state_dict changes the groups it is given.
        groups = [dict(group) for group in self._optimizer.state_dict()["param_groups"]]
        self._optimizer.load_state_dict({"state": optimizer_state(tensors), "param_groups": groups})

    def close(self) -> None:
        self._network, self._prepared = cast(
            tuple, self._accelerator.free_memory(self._network, self._prepared)
        )


def make_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    """The optimizer in torch, on every machine; frozen weights are left out. Rates are 0 until an update sets them."""
    return settings.make(model)


def optimizer_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Any]]:
    """The optimizer's state by number of the parameter, from `tensors` of a learner."""
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in with_prefix(tensors, "optimizer.").items():
        number, _, name = key.partition(".")
        # A step that is counted as a Python number is one again: its powers are of double precision.
        counted = tensor.dim() == 0 and not tensor.is_floating_point()
        state.setdefault(int(number), {})[name] = tensor.item() if counted else tensor
    return state
