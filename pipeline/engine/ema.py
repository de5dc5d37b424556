"""An exponential moving average of the weights, as part of the optimizer's own state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.engine.fragments import AVERAGE


class Averaging:
    """Makes an optimizer keep averages of its master weights under the key `ema` of their state.

    They are float32, updated after every update that is made and by no other, and lie where the masters lie: sharded
    by every ZeRO stage, saved and loaded with the moments. An average begins as the weights before the first update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.decay = decay
        self._initial: dict[Tensor, Tensor] = {}
        optimizer.register_step_pre_hook(self._keep_initial)
        optimizer.register_step_post_hook(self._average)

    @torch.no_grad()
    def _keep_initial(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        # Optimizers make their state when it is empty, so that the average can only enter it after their update.
        for master in _updated(optimizer):
            if AVERAGE not in optimizer.state[master]:
                self._initial[master] = master.detach().clone()

    @torch.no_grad()
    def _average(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        masters = _updated(optimizer)
        for master in masters:
            if AVERAGE not in optimizer.state[master]:
                optimizer.state[master][AVERAGE] = self._initial.pop(master)
        averages = [optimizer.state[master][AVERAGE] for master in masters]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            averages, [master.detach() for master in masters], 1.0 - self.decay
        )


def _updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        master for group in optimizer.param_groups for master in group["params"] if master.grad is not None
    ]
