"""`cloze plan`: memory, disk and hours of a run or of a preparation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from pipeline.plan.plan import Plan


_GIB = 1 << 30


def plan(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs of each machine; with `--gpu cpu`, workers.", show_default="1"),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The GPU, such as h100 or a100-40gb; or cpu.", show_default="h100")
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e6, help="Memory of one GPU or worker, in place of the usual."),
    ] = None,
    mfu: Annotated[
        float | None, typer.Option(min=0.001, max=1.0, help="Share of the GPU's peak to be expected.")
    ] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Of a preparation: processors of each machine.", show_default="as here"),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Of a preparation: the `out` of a finished one, such as of a sample, whose speeds count."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Of a preparation: stored size of all sources, such as 85TB, where they are not here."
        ),
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Work out memory, disk and hours of a pre-training run or of a preparation, before anything is started."""
    from pipeline.config.loading import load_config, load_plain
    from pipeline.engine.gpus import require_gpu
    from pipeline.plan.plan import make_plan, to_json
    from pipeline.preparation import missing_stores
    from pipeline.run.config import PretrainConfig

    of_runs = {"--gpu": gpu, "--gpus-per-node": gpus_per_node, "--memory-gib": memory_gib, "--mfu": mfu}
    of_preparations = {"--cpus-per-node": cpus_per_node, "--measured": measured, "--size": size}
    if "sources" in load_plain(PretrainConfig, config, overrides or ()):
        _refuse(of_runs, f"{config} is a preparation", "pre-training runs")
        cpus = cpus_per_node or os.cpu_count() or 1
        _plan_preparation(config, overrides or (), nodes, cpus, measured, size, as_json=as_json)
        return
    _refuse(of_preparations, f"{config} is a pre-training run", "preparations")
    card = require_gpu(gpu or "h100")
    # The plan is for the machines of the command line; one worker shares out any batch.
    settings = load_config(PretrainConfig, config, (*(overrides or ()), "cluster.workers=1"))
    made = missing_stores(settings, config).values()
    vocab_size = next((maker.vocab_size for maker in made if maker is not None), None)
    memory = None if memory_gib is None else round(memory_gib * _GIB)
    found = make_plan(
        settings, card, nodes, gpus_per_node or 1, memory_bytes=memory, mfu=mfu, vocab_size=vocab_size
    )
    if as_json:
        output.print_json(to_json(found))
    else:
        _show(found)


def _refuse(options: Mapping[str, object], kind: str, others: str) -> None:
    """Refuse options that the plan would ignore."""
    from cluster.artefacts.errors import ConfigError

    if given := [name for name, value in options.items() if value is not None]:
        raise ConfigError(
            f"{kind}, and {', '.join(given)} {'is' if len(given) == 1 else 'are'} for {others}.",
            next_step=f"leave {', '.join(given)} out",
        )


def _show(plan: Plan) -> None:
    machines = plan.machines
    workers = f"{machines.nodes} x {machines.devices_per_node} {plan.gpu}"
    output.print_mapping(
        f"{plan.name} on {workers}",
        {
            "network": f"{plan.network}, {plan.objective}",
            "parameters": plan.parameters,
            "vocabulary": f"{plan.vocabulary:,}"
            + (f" ({plan.vocabulary_note})" if plan.vocabulary_note else ""),
            "attention": f"{plan.attention} ({plan.attention_reason})",
            "memory of a device": _gib(machines.device_bytes),
        },
    )
    memory, host = plan.chosen.memory, asdict(plan.chosen.host)
    host |= {"at the start": host.pop("start"), "at most": plan.chosen.host.total}
    title = f"memory of a device, at its peak ({memory.moment}), {plan.chosen.name}"
    for heading, parts in ((title, memory.parts | {"in all": memory.total}), ("memory of a node", host)):
        sizes = {name.replace("_", " "): _gib(size) for name, size in parts.items() if size}
        output.print_mapping(heading, sizes)
    columns = {
        "spread": "name",
        "GiB per device": lambda option: round(option.memory.total / _GIB, 2),
        "fits": lambda option: output.shown(option.fits),
        "largest micro-batch": "micro_batch_size",
        "traffic": lambda option: f"{option.traffic:g} x",
        "host GiB per node": lambda option: round(option.host.total / _GIB, 1),
    }
    output.print_table("ways to spread the state", columns, plan.options)
    duration, disk = plan.duration, plan.disk
    speed = "unknown" if duration.speed is None else f"{duration.speed.mfu:.0%} ({duration.speed.source})"
    output.print_mapping(
        "the whole run",
        {
            "steps": duration.steps,
            "tokens": duration.tokens,
            "operations": None if duration.flops is None else f"{duration.flops:.3g}",
            "share of the peak": speed,
            "hours": duration.hours,
            "device hours": duration.device_hours,
            "one checkpoint": _gib(disk.checkpoint),
            "checkpoints kept": disk.kept,
            "disk for checkpoints": None if disk.total is None else _gib(disk.total),
            "disk that is free": None if disk.free is None else _gib(disk.free),
        },
    )
    columns = {"store": "path", "tokens": "tokens", "tokens read": "read", "epochs": "epochs"}
    output.print_table("text", columns, plan.stores)
    for warning in plan.warnings:
        typer.echo(f"! {warning}")
    if plan.cheapest is not None:
        typer.echo(f"Least communication that fits: {plan.cheapest}")


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 10 else f"{size / (1 << 20):.1f} MiB"


def _plan_preparation(
    path: Path,
    overrides: Sequence[str],
    nodes: int,
    cpus_per_node: int,
    measured: Path | None,
    size: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what a preparation takes on other machines."""
    from cluster.artefacts.errors import ConfigError
    from cluster.artefacts.places import parse_size
    from data_prep.config import PreparationConfig
    from data_prep.plan import forecast
    from pipeline.config.loading import load_config
    from pipeline.preparation import load_preparation

    if measured is None:
        raise ConfigError(
            f"{path} is a preparation; its plan needs speeds that were measured.",
            next_step="prepare a sample with it, such as one file (sources.0.paths=[FILE] out=DIRECTORY), and add"
            " --measured DIRECTORY",
        )
    if size is None:
        config, source_bytes = load_preparation(path, overrides), None
    else:
        config, source_bytes = load_config(PreparationConfig, path, overrides), parse_size(size, "--size ")
        if not source_bytes:
            raise ConfigError(
                f"--size {size}: sources of no bytes take nothing.", next_step="give the size of the sources"
            )
    found = forecast(config, measured, nodes=nodes, cpus_per_node=cpus_per_node, source_bytes=source_bytes)
    if as_json:
        own = ("hours", "node_hours", "disk_bytes", "node_memory_bytes")
        output.print_json(asdict(found) | {name: getattr(found, name) for name in own})
        return
    columns = {
        "stage or step": "name",
        "tasks": lambda step: f"{step.tasks:,}",
        "processor": lambda step: output.duration(step.cpu_s),
        "by the clock": lambda step: output.duration(step.seconds),
        "GiB on disk": lambda step: f"{step.disk_bytes / _GIB:,.2f}",
        "GiB a task": lambda step: f"{step.task_bytes / _GIB:.2f}",
    }
    title = f"{found.name} on {found.nodes} x {found.cpus_per_node} processors"
    output.print_table(title, columns, found.steps)
    output.print_mapping(
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
