"""The memory of this machine, and the load of a Ray cluster's nodes as its dashboard knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_MIB = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
"""Directory of control groups, version 2."""


class Memory(NamedTuple):
    """Bytes."""

    total: int
    available: int


def memory() -> Memory:
    """Memory in all, and what could be had now."""
    machine = psutil.virtual_memory()
    limit, used = _bytes("memory.max"), _bytes("memory.current")
    if limit is not None and limit < machine.total:
        return Memory(limit, max(0, limit - (used or 0)))
    return Memory(machine.total, machine.available)


def _bytes(name: str) -> int | None:
    """A number of this container's memory controller; None where there is no limit."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU; None where the machine does not report it."""

    number: int
    ratio: float | None = None
    """Share of the time that kernels ran."""
    memory_bytes: float | None = None
    memory_ratio: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One machine; None where it does not report it."""

    name: str
    cpu_ratio: float | None = None
    """Share of the processors' time."""
    load_average: float | None = None
    """Over one minute."""
    memory_bytes: float | None = None
    """In use."""
    memory_ratio: float | None = None
    disk_free_bytes: float | None = None
    gpus: tuple[GpuLoad, ...] = ()
    is_alive: bool = True


def read_nodes(client: JobSubmissionClient) -> list[NodeLoad]:
    """The nodes of a cluster by name, then the nodes that died during its life.

    Raises:
        ClusterUnreachableError: the dashboard does not answer.
    """
    from cluster.connecting import TIMEOUT_S
    from cluster.jobs import answering
    from cluster.ray_internals import node_summaries

    with answering(client.get_address()):
        found = [_of_summary(summary) for summary in node_summaries(client, TIMEOUT_S)]
    return sorted(found, key=lambda node: (not node.is_alive, node.name))


def _of_summary(summary: Mapping[str, Any]) -> NodeLoad:
    raylet = summary.get("raylet") or {}
    # (total, available, percent, used); load averages of 1, 5 and 15 minutes, of the machine and by processor.
    memory, load = summary.get("mem") or (), summary.get("loadAvg") or ()
    cpu, disk = summary.get("cpu"), (summary.get("disk") or {}).get("/") or {}
    return NodeLoad(
        name=str(summary.get("hostname") or raylet.get("nodeManagerHostname") or raylet.get("nodeId") or "?"),
        cpu_ratio=None if cpu is None else cpu / 100,
        load_average=load[0][0] if load else None,
        memory_bytes=memory[3] if memory else None,
        memory_ratio=memory[2] / 100 if memory else None,
        disk_free_bytes=disk.get("free"),
        gpus=tuple(_of_gpu(gpu) for gpu in summary.get("gpus") or ()),
        is_alive=raylet.get("state") == "ALIVE",
    )


def _of_gpu(gpu: Mapping[str, Any]) -> GpuLoad:
    used, total, busy, power = (
        gpu.get(key) for key in ("memoryUsed", "memoryTotal", "utilizationGpu", "powerMw")
    )
    return GpuLoad(
        number=int(gpu.get("index", 0)),
        ratio=None if busy is None else busy / 100,
        memory_bytes=None if used is None else used * _MIB,
        memory_ratio=used / total if used is not None and total else None,
        power_watts=None if power is None else power / 1000,
    )
