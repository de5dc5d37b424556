"""The process group of a training group, whose store listens on its node's own address only.

torch's store listens on all addresses of a machine, without a password: also on a laptop, where Ray's
processes listen on loopback addresses.

torch is imported by the functions that workers run. The driver and Ray Train's controller do without it: workers start
only when both have imported all that they import. So `TorchConfig`, which brings torch along, is not the base class.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import ray.train
from ray.exceptions import GetTimeoutError
from ray.train.backend import Backend, BackendConfig

from cluster.collectives import GROUP_TIMEOUT_S

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_LOOPBACK = "127.0.0.1"
_LEAVE_S = 30.0
"""Seconds that workers have for leaving the group when it ends."""


@dataclass
class OwnAddressConfig(BackendConfig):
    """Ray Train's configuration of a process group, with `OwnAddressBackend`."""

    backend: str = "gloo"
    """Name of torch's backend."""
    timeout_s: int = GROUP_TIMEOUT_S
    """Seconds after which a collective operation fails."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every worker, set before it imports torch."""

    @property
    def backend_cls(self) -> type[Backend]:
        return OwnAddressBackend


class OwnAddressBackend(Backend):
    """A process group of torch, with a store that rank 0 opens on its own address."""

    share_cuda_visible_devices = True
    """Every worker sees all GPUs of its node, and takes that of its local rank."""

    def on_start(self, worker_group: Any, backend_config: OwnAddressConfig) -> None:
        """Open the store, and let all workers join."""
        # In all at once, because the import of torch takes seconds.
        host, port = worker_group.execute(open_store, dict(backend_config.environment))[0]
        joining = [
            worker_group.execute_single_async(
                rank, join, backend_config.backend, host, port, backend_config.timeout_s
            )
            for rank in range(len(worker_group))
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: OwnAddressConfig) -> None:
        """Let all workers leave; one that hangs is ended by Ray."""
        with suppress(GetTimeoutError):
            ray.get(worker_group.execute_async(leave), timeout=_LEAVE_S)


def own_store(host: str, timeout: timedelta = timedelta(seconds=300)) -> TCPStore:
    """A store for a process group that listens on `host` alone, at a free port."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

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


def open_store(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Set variables of the environment and import torch, which reads some of them; in the process of rank 0, open the
    store of the group and return its address and its port."""
    os.environ |= environment
    importlib.import_module("torch.distributed")
    if ray.train.get_context().get_world_rank():
        return None
    store = own_store(ray.util.get_node_ip_address())
    _stores.append(store)
    return store.host, store.port


def join(backend: str, host: str, port: int, timeout_s: float) -> None:
    """Make this process, a worker of Ray Train, a member of the group; tell libraries its rank as `torchrun` does."""
    import torch.distributed as dist

    context = ray.train.get_context()
    if host == _LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ |= {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    store = _stores[-1] if _stores else dist.TCPStore(host, port, is_master=False, timeout=timeout)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(
        backend,
        store=store,
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        timeout=timeout,
    )


def leave() -> None:
    """End this process's membership."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.destroy_process_group()
