"""Preflight checks: are this machine, and the nodes of a cluster (`nodes`), fit to run? Each check has a finding, and a
remedy where it fails.

Kept fast: no heavy library is imported unless the machine has a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from cluster.artefacts.errors import ClozeError
from cluster.checks import machine, services
from cluster.checks.machine import Check


@dataclass(frozen=True, slots=True)
class Places:
    """Directories and addresses that a run would use."""

    runs_dir: Path
    data_dir: Path | None
    ray_address: str | None
    """None: verbs start their own Ray."""
    tracking_uri: str | None
    """None: SQLite in `runs_dir`."""


def run_checks(places: Places) -> list[Check]:
    """All checks, in the order of applying their remedies; none leaves anything on disk."""
    return [
        *check_machine(places),
        _guarded("ray", partial(services.check_ray, places.ray_address)),
    ]


def check_machine(places: Places) -> list[Check]:
    """The checks of this machine, and of the tracking store as it is seen from here."""
    disks = {"data disk": places.data_dir, "runs disk": places.runs_dir}
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", machine.check_python),
        ("packages", machine.check_packages),
        ("cpus", machine.check_cpus),
        ("memory", machine.check_memory),
        ("gpus", machine.check_gpus),
        ("shared memory", machine.check_shared_memory),
        ("open files", machine.check_open_files),
        *((name, partial(machine.check_disk, name, place)) for name, place in disks.items() if place),
        ("durable writes", partial(machine.check_durable_writes, places.runs_dir)),
        ("tracking", partial(services.check_tracking, places.tracking_uri)),
    ]
    return [_guarded(name, check) for name, check in checks]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that raises becomes a warning, so that the others still run."""
    try:
        return check()
    except (OSError, ValueError, psutil.Error, ClozeError) as error:
        return Check(name, "warn", f"could not be checked: {type(error).__name__}: {error}")
