"""Faults that real processes suffer, a campaign per run; its end is compared with a run without faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.campaigns import hosts, processes, storage
from tests.chaos.scene import Scene


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


def _on_a_disk(suffer: Callable[[Scene], None], *overrides: str) -> Campaign:
    return Campaign(suffer, overrides, storage.can_mount, storage.small_disk)


def _with_cables(suffer: Callable[[Scene], None], around: Any, *overrides: str) -> Campaign:
    return Campaign(suffer, overrides, hosts.cannot_cable, around)


_BESIDE_RUN, _TEN_STEPS = "checkpoint.directory={directory}/disk", "checkpoint.every_steps=10"
CAMPAIGNS = {
    "power-failure": Campaign(processes.killed_together),
    "moments": Campaign(processes.moments),
    "checkpoint-disk": _on_a_disk(storage.checkpoint_disk, _BESIDE_RUN, _TEN_STEPS),
    "run-disk": _on_a_disk(storage.run_disk, "runs_dir={directory}/disk"),
    "habits": Campaign(storage.habits),
    "stale-start": Campaign(storage.stale_start),
    "clocks": Campaign(processes.clock_jumps),
    "network": _with_cables(hosts.cables, hosts.two_hosts, "guards.stall_timeout_s=600"),
    "network-cut": _with_cables(hosts.cut_for_good, hosts.two_hosts),
    "network-ray": _with_cables(hosts.cables_of_ray, hosts.ray_on_two_hosts),
    "nodes": Campaign(processes.nodes, around=processes.cluster_of_nodes),
    "ray": Campaign(processes.ray_processes),
}
"""By name."""
