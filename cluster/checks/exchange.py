"""All-reduce between two nodes: is the sum right, and how fast is the network between them?"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta

_NUMBERS = 4 * 1024**2
"""float32 numbers of an exchange: 16 MiB, about a bucket of gradients."""
_REPEATS = 5
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """The result of an exchange between two ranks."""

    backend: str
    correct: bool
    gib_per_s: float
    """Bytes that were summed, per second; between two ranks each sends and receives as many."""


class ExchangeRank:
    """One of two ranks."""

    def address(self) -> tuple[str, int]:
        """Address of this node, as the other one reaches it, and a free port."""
        import ray

        with socket.create_server(("", 0)) as server:
            return ray.util.get_node_ip_address(), server.getsockname()[1]

    def exchange(self, rank: int, host: str, port: int, backend: str) -> Exchange:
        """Sum numbers with the other rank a few times.

        Raises:
            RuntimeError: the other rank cannot be reached, or the sum fails.
        """
        import torch
        import torch.distributed as dist

        device = torch.device("cuda" if backend == "nccl" else "cpu")
        place = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        dist.init_process_group(
            backend, init_method=place, rank=rank, world_size=2, timeout=timedelta(seconds=_TIMEOUT_S)
        )
        try:
            numbers = torch.arange(_NUMBERS, dtype=torch.float32, device=device) % 1024
            expected, seconds = 3 * numbers, []
            correct = True
            for _ in range(_REPEATS):
                mine = (rank + 1) * numbers
                dist.barrier()
                began = time.perf_counter()
                dist.all_reduce(mine)
                # Reading a value waits for the GPU.
                correct &= bool((mine == expected).all().item())
                seconds.append(time.perf_counter() - began)
        finally:
            dist.destroy_process_group()
        return Exchange(backend, correct, _NUMBERS * 4 / min(seconds) / 1024**3)
