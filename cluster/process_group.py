"""The process group of a training group, whose store listens on its node's own address only.

torch's store listens on all addresses of a machine, without a password: also on a laptop, where Ray's
processes listen on loopback addresses.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.train.torch import TorchConfig
from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_LOOPBACK = "127.0.0.1"


class OwnAddressConfig(TorchConfig):
    """Ray Train's configuration of a process group, with `OwnAddressBackend`."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return OwnAddressBackend


class OwnAddressBackend(_TorchBackend):
    """Ray Train's process group, with a store that rank 0 opens on its own address."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Open the store, and let all workers join."""
        host, port = worker_group.execute_single(0, open_store)
        worker_group.execute(_set_torch_distributed_env_vars)
        joining = [
            worker_group.execute_single_async(
                rank, join, backend_config.backend, host, port, backend_config.timeout_s
            )
            for rank in range(len(worker_group))
        ]
        ray.get(joining)


def own_store(host: str, timeout: timedelta = timedelta(seconds=300)) -> TCPStore:
    """A store for a process group that listens on `host` alone, at a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        return TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
        )


_stores: list[TCPStore] = []
"""The store of this process, which ends with it."""


def open_store() -> tuple[str, int]:
    """Open the store of the group in the process of rank 0; returns its address and its port."""
    store = own_store(ray.util.get_node_ip_address())
    _stores.append(store)
    return store.host, store.port


def join(backend: str, host: str, port: int, timeout_s: float) -> None:
    """Make this process a member of the group; its rank is in its environment."""
    if host == _LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    store = _stores[-1] if _stores else TCPStore(host, port, is_master=False, timeout=timeout)
    dist.init_process_group(
        backend,
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timeout,
    )
