"""Faults that real processes suffer, a campaign per run; its end is compared with a run without faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.campaigns import clocks, damage, moments, ray_processes, starts, storage
from tests.chaos.scene import Scene


@dataclass(frozen=True, slots=True)
class Campaign:
    """The faults of one run."""

    suffer: Callable[[Scene], None]
    overrides: tuple[str, ...] = ()
    """Settings of the run besides the shared ones; `{directory}` is the scene's."""
    cannot: Callable[[], str] = lambda: ""
    """Why it cannot be done on this machine; empty where it can."""


def _on_disk(suffer: Callable[[Scene, Path], None]) -> Callable[[Scene], None]:
    """Give a campaign the directory `disk` of its scene, which is a small file system."""
    return lambda scene: suffer(scene, scene.directory / "disk")


CAMPAIGNS = {
    "power-failure": Campaign(moments.killed_together),
    "moments": Campaign(moments.moments),
    "sender": Campaign(moments.killed_sender),
    "checkpoint-disk": Campaign(
        _on_disk(storage.checkpoint_disk),
        ("checkpoint.directory={directory}/disk", "checkpoint.every_steps=10"),
        storage.can_mount,
    ),
    "run-disk": Campaign(_on_disk(storage.run_disk), ("runs_dir={directory}/disk",), storage.can_mount),
    "habits": Campaign(storage.habits),
    "stale-start": Campaign(storage.stale_start),
    "checkpoints": Campaign(damage.damaged_checkpoints, ("checkpoint.keep_last=3",)),
    "tokens": Campaign(damage.damaged_tokens),
    "clocks": Campaign(clocks.clock_jumps),
    "two-starts": Campaign(starts.two_starts, cannot=starts.can_be_another_host),
    "cut-off-host": Campaign(
        starts.cut_off_host, ("guards.stall_timeout_s=900",), starts.can_be_another_host
    ),
    "ray": Campaign(ray_processes.ray_processes),
}
"""By name."""
