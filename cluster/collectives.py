"""Collectives on a few numbers or objects, and how long the processes of a group wait for each other. torch is imported
when it is needed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")

GROUP_TIMEOUT_S = 1800
"""Timeout (seconds) of a collective operation, however the group was started. NCCL's own default is 600."""
_SIGN_S = 1.0
"""Seconds between two signs of life."""


def while_others_wait(work: Callable[[], Result] | None) -> Result | None:
    """Run work that only some ranks have, such as the verification of a large checkpoint, and return its result.

    All ranks must call it. The work is done in a thread, and meanwhile all ranks exchange signs of life: no collective
    operation waits for it, so that it may take longer than the group's timeout.
    """
    import torch.distributed as dist

    outcome: Future[Result | None] = Future()

    def run() -> None:
        try:
            outcome.set_result(work() if work else None)
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    signs: list[bool] = [True] * dist.get_world_size()
    while any(signs):
        with suppress(TimeoutError):
            outcome.exception(timeout=_SIGN_S if work else None)
        dist.all_gather_object(signs, not outcome.done())
    return outcome.result()


def summed(sums: Tensor, others: Sequence[float] = ()) -> tuple[list[float], list[float]]:
    """Sums over ranks, in one message; equal to the last bit on all of them.

    Args:
        sums: [numbers] float64 on this rank's device.
        others: more numbers, from the host.

    Returns:
        The sums of `sums`, and the sums of `others`.
    """
    import torch
    import torch.distributed as dist

    vector = torch.cat([sums, torch.tensor(others, dtype=torch.float64).to(sums.device)])
    dist.all_reduce(vector)
    values = vector.tolist()
    return values[: len(sums)], values[len(sums) :]


def from_rank_zero(value: Any) -> Any:
    """Rank 0's object, on every rank; the other ranks' arguments are ignored."""
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gathered(value: Any) -> list[Any]:
    """The objects of all ranks, by rank."""
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def host_group() -> Any:
    """A process group of all ranks for host memory, so that a thread can wait for others beside the collectives of
    training. A rank that ends is noticed at once; one that is slow is waited for.

    Gloo takes the network interface that leads to rank 0, unless GLOO_SOCKET_IFNAME names another: by itself it would
    look up the host's name, which may be an address of the loopback.
    """
    import torch.distributed as dist

    with suppress(OSError, KeyError, StopIteration):
        family, kind, protocol, _, address = socket.getaddrinfo(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
        interfaces = psutil.net_if_addrs().items()
        name = next(name for name, found in interfaces if own in (one.address for one in found))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    return dist.new_group(backend="gloo", timeout=timedelta(days=1))
