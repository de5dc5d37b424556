"""An exponential moving average of the weights, as part of the optimizer's own state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

AVERAGE = "ema"
"""Key of the moving average in the optimizer's state."""


class Averaging:
    """Make an optimizer keep a moving average of its master weights in its state, under the key `AVERAGE`.

    The averages are float32 and change with every applied update only. They lie where the master weights lie: sharded
    by every ZeRO stage, saved and loaded with the moments. An average starts as the weights before the first update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self._move = get_ema_multi_avg_fn(decay)
        self._initial: dict[Tensor, Tensor] = {}
        optimizer.register_step_pre_hook(self._keep_initial)
        optimizer.register_step_post_hook(self._average)

    @torch.no_grad()
    def _keep_initial(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        # Optimizers create their state if it is empty, so the average can only be added after their update.
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
        self._move(averages, [master.detach() for master in masters], 0)


def _updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        master for group in optimizer.param_groups for master in group["params"] if master.grad is not None
    ]
