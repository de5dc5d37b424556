"""`cloze metrics`: the figures of runs, data jobs and a cluster's jobs for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import LogFormat
from pipeline.commands.top import DataDirs, Days, Most, RunsDirs, WatchedAddress, watched_cluster

metrics_app = typer.Typer(invoke_without_command=True)


@metrics_app.callback()
def metrics(
    context: typer.Context,
    runs_dirs: RunsDirs = None,
    data_dirs: DataDirs = None,
    address: WatchedAddress = None,
    days: Days = 7.0,
    most: Most = 200,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 9477,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Readers see names of runs and machines.")
    ] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and end.")] = False,
    log_format: LogFormat = None,
) -> None:
    """Serve metrics for Prometheus until it is stopped. It reads files only, and disturbs no run."""
    if context.invoked_subcommand is not None:
        return
    from pipeline.watch.prometheus import ClozeCollector, exposition, serve
    from pipeline.watch.run_status import RunsReader

    reader = RunsReader(runs_dirs or [Path("runs")], days=days, most=most)
    collector = ClozeCollector(reader, data_dirs or [], watched_cluster(address))
    if once:
        sys.stdout.write(exposition(collector))
        return
    with serve(collector, host, port) as server:
        typer.echo(f"metrics: {server.url}", err=True)
        typer.echo("Next: cloze metrics files DIR writes a configuration, alerts and a dashboard", err=True)
        server.wait()


@metrics_app.command()
def files(
    directory: Annotated[Path, typer.Argument(file_okay=False, help="Where to write; made if it is new.")],
    runbooks: Annotated[
        str, typer.Option(help="Where your operators read runbooks, such as https://HOST/runbooks.")
    ] = "runbooks",
) -> None:
    """Write Prometheus's configuration, alert rules with their runbooks, and a Grafana dashboard."""
    from pipeline.watch.prometheus import write_files

    for path in write_files(directory, runbooks):
        typer.echo(str(path))
    typer.echo(f"Next: prometheus --config.file {directory / 'prometheus.yaml'}", err=True)
