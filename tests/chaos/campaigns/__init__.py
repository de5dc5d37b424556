"""Faults that real processes suffer, a campaign per run; its end is compared with a run without faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.campaigns import (
    clocks,
    damage,
    moments,
    network,
    nodes,
    preparation,
    ray_hosts,
    ray_processes,
    starts,
    storage,
    tracking,
)
from tests.chaos.scene import Scene

AnyScene = Scene | preparation.Preparation
"""Work that suffers faults."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The faults of one run."""

    suffer: Callable[[Any], None]
    overrides: tuple[str, ...] = ()
    """Settings of the run besides the shared ones; `{directory}` is the scene's."""
    cannot: Callable[[], str] = lambda: ""
    """Why it cannot be done on this machine; empty where it can."""
    around: Callable[[Path], AbstractContextManager[Any]] = nullcontext
    """Sets up, in the scene's directory, what the run needs around it: `Scene.around`."""
    scene: Callable[..., AnyScene] = Scene


def _of_data(suffer: Callable[[preparation.Preparation], None]) -> Campaign:
    return Campaign(
        suffer, (), storage.can_mount, preparation.cluster_and_disk, scene=preparation.Preparation
    )


CAMPAIGNS = {
    "power-failure": Campaign(moments.killed_together),
    "moments": Campaign(moments.moments),
    "sender": Campaign(moments.killed_sender),
    "checkpoint-disk": Campaign(
        storage.checkpoint_disk,
        ("checkpoint.directory={directory}/disk", "checkpoint.every_steps=10"),
        storage.can_mount,
        storage.small_disk,
    ),
    "run-disk": Campaign(
        storage.run_disk, ("runs_dir={directory}/disk",), storage.can_mount, storage.small_disk
    ),
    "habits": Campaign(storage.habits),
    "stale-start": Campaign(storage.stale_start),
    "checkpoints": Campaign(damage.damaged_checkpoints, ("checkpoint.keep_last=3",)),
    "tokens": Campaign(damage.damaged_tokens),
    "clocks": Campaign(clocks.clock_jumps),
    "two-starts": Campaign(starts.two_starts, cannot=starts.can_be_another_host),
    "cut-off-host": Campaign(
        starts.cut_off_host, ("guards.stall_timeout_s=900",), starts.can_be_another_host
    ),
    "network": Campaign(network.cables, ("guards.stall_timeout_s=600",), network.cannot, network.two_hosts),
    "network-cut": Campaign(network.cut_for_good, (), network.cannot, network.two_hosts),
    "network-ray": Campaign(ray_hosts.cables, (), network.cannot, ray_hosts.ray_on_two_hosts),
    "tracking": Campaign(tracking.outages, (), storage.can_mount, tracking.server_on_a_disk),
    "nodes": Campaign(nodes.nodes, around=nodes.cluster_of_nodes),
    "data-processes": _of_data(preparation.lost_processes),
    "data-storage": _of_data(preparation.storage),
    "data-damage": _of_data(preparation.damage),
    "ray": Campaign(ray_processes.ray_processes),
}
"""By name."""
