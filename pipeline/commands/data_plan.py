"""`cloze plan` of a data configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipeline.commands.output import print_json, print_mapping, print_table

if TYPE_CHECKING:
    from data_prep.forecast import Forecast

_GIB = 1 << 30


def plan_data(
    path: Path,
    overrides: Sequence[str],
    nodes: int,
    cpus_per_node: int,
    measured: Path | None,
    size: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what a preparation takes on other machines.

    Raises:
        ConfigError: no measurement is named, or `size` is no size.
    """
    from cluster.artefacts.errors import ConfigError
    from data_prep.config import PreparationConfig
    from data_prep.forecast import forecast
    from pipeline.config.loading import load_config
    from pipeline.preparation import load_preparation

    if measured is None:
        raise ConfigError(
            f"{path} is a preparation; its plan needs speeds that were measured.",
            next_step="prepare a sample with it, such as one file (sources.0.paths=[FILE] out=DIRECTORY), and add"
            " --measured DIRECTORY",
        )
    load = (
        load_preparation if size is None else lambda path, given: load_config(PreparationConfig, path, given)
    )
    found = forecast(
        load(path, overrides),
        measured,
        nodes=nodes,
        cpus_per_node=cpus_per_node,
        source_bytes=None if size is None else _bytes(size),
    )
    if as_json:
        own = ("hours", "node_hours", "disk_bytes", "node_memory_bytes")
        print_json(asdict(found) | {name: getattr(found, name) for name in own})
    else:
        _show(found)


def _bytes(size: str) -> int:
    from cluster.artefacts.errors import ConfigError
    from cluster.artefacts.places import parse_size

    if found := parse_size(size, "--size "):
        return found
    raise ConfigError(
        f"--size {size}: sources of no bytes take nothing.", next_step="give the size of the sources"
    )


def _show(found: Forecast) -> None:
    rows = [
        (
            step.name,
            f"{step.tasks:,}",
            _duration(step.cpu_s),
            _duration(step.seconds),
            f"{step.disk_bytes / _GIB:,.2f}",
            f"{step.task_bytes / _GIB:.2f}",
        )
        for step in found.steps
    ]
    title = f"{found.name} on {found.nodes} x {found.cpus_per_node} processors"
    print_table(
        title, ("stage or step", "tasks", "processor", "by the clock", "GiB on disk", "GiB a task"), rows
    )
    print_mapping(
        "the whole preparation",
        {
            "sources": f"{found.source_bytes / _GIB:,.2f} GiB",
            "measured on": f"{found.measured_bytes / _GIB:,.2f} GiB",
            "hours": round(found.hours, 2),
            "hours of a machine": round(found.node_hours, 1),
            "disk": f"{found.disk_bytes / _GIB:,.1f} GiB",
            "memory of a node": f"{found.node_memory_bytes / _GIB:,.1f} GiB for tasks",
        },
    )
    for warning in found.warnings:
        typer.echo(f"! {warning}")


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"
