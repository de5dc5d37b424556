"""Faults that real processes suffer, a campaign per run; its end is compared with a run without faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.campaigns import hosts, processes, storage


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


ON_A_DISK: Any = {"cannot": storage.can_mount, "around": storage.small_disk}
WITH_CABLES: Any = {"cannot": hosts.cannot_cable, "around": hosts.two_hosts}
BESIDE_RUN = ("checkpoint.directory={directory}/disk", "checkpoint.every_steps=10")
CAMPAIGNS = {
    "power-failure": Campaign(processes.killed_together),
    "moments": Campaign(processes.moments),
    "checkpoint-disk": Campaign(storage.checkpoint_disk, BESIDE_RUN, **ON_A_DISK),
    "run-disk": Campaign(storage.run_disk, ("runs_dir={directory}/disk",), **ON_A_DISK),
    "habits": Campaign(storage.habits),
    "stale-start": Campaign(storage.stale_start),
    "clocks": Campaign(processes.clock_jumps),
    "network": Campaign(hosts.cables, ("guards.stall_timeout_s=600",), **WITH_CABLES),
    "network-cut": Campaign(hosts.cut_for_good, **WITH_CABLES),
    "node": Campaign(processes.lost_node, around=processes.two_nodes),
    "ray": Campaign(processes.ray_processes),
}
"""By name."""
