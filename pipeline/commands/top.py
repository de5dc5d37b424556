"""`cloze top` and `cloze metrics`: runs, data jobs and machines, live for people and for Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.artefacts.visible import visible
from pipeline.commands import output

RunsDirs = Annotated[
    list[Path] | None,
    typer.Option("--runs-dir", help="Directory that holds runs; repeatable.", show_default="runs"),
]
DataDirs = Annotated[
    list[Path] | None,
    typer.Option("--data-dir", help="Directory of a preparation, or that holds some; repeatable."),
]
WatchedAddress = Annotated[
    str | None,
    typer.Option("--address", help="Also watch this Ray cluster: http://HOST:8265, HOST:6379 or auto."),
]
Days = Annotated[float, typer.Option(min=0.0, help="Leave out runs that wrote nothing for so long.")]
Most = Annotated[int, typer.Option(min=1, help="Runs to show at most.")]
_WIDTH_OF_FILES = 160
_COLORS = {
    "running": "green",
    "starting": "cyan",
    "finished": "dim",
    "created": "dim",
    "preempted": "yellow",
    "stalled": "bold red",
    "lost": "red",
    "failed": "red",
    "unreadable": "red",
}


def top(
    runs_dirs: RunsDirs = None,
    data_dirs: DataDirs = None,
    address: WatchedAddress = None,
    days: Days = 7.0,
    most: Most = 30,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    as_json: output.Json = False,
) -> None:
    """Watch runs, data jobs and machines; Ctrl-C ends it. It reads files only, and disturbs no run."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from cluster import signals
    from pipeline.watch.overview import ClusterWatch, look
    from pipeline.watch.run_status import RunsReader

    reader = RunsReader(runs_dirs or [Path("runs")], days=days, most=most)
    cluster = None if address is None else ClusterWatch(address)

    def page() -> Group:
        parts = _parts(look(reader, data_dirs or [], cluster))
        return Group(*(Text(visible(part)) if isinstance(part, str) else part for part in parts))

    if as_json:
        output.print_json(look(reader, data_dirs or [], cluster))
        return
    if once or not sys.stdout.isatty():
        Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(page())
        return
    with (
        signals.continued_by("cloze top", kept="everything: it only looks"),
        Live(page(), console=Console(), screen=True, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(interval)
            live.update(page(), refresh=True)


def _parts(found: Mapping[str, Any]) -> Iterator[Any]:
    now = time.time()

    def age(time_s: float | None) -> str | None:
        """How long ago; clocks of machines differ, so never less than nothing."""
        return _duration(None if time_s is None else max(0.0, now - time_s))

    runs, left_out = found["runs"], found["runs_left_out"]
    rest = f", {left_out} more (--days, --most)" if left_out else ""
    columns: dict[str, output.Column] = {
        "run": "name",
        "state": "state",
        "step": lambda run: f"{run['step']:,}" + (f"/{run['num_steps']:,}" if run["num_steps"] else ""),
        "loss": lambda run: run["metrics"].get("loss"),
        "held-out": lambda run: run["held_out"].get("loss"),
        "tokens/s": lambda run: run["metrics"].get("tokens_per_s"),
        "MFU": lambda run: _percent(run["metrics"].get("mfu")),
        "data wait": lambda run: _percent(run["metrics"].get("data_wait_share")),
        "memory GB": lambda run: _gigabytes(run["memory_bytes"]),
        "restarts": "restarts",
        "checkpoint": lambda run: age(run["checkpoint_s"]),
        "last step": lambda run: age(run["logged_s"]),
    }
    yield _table(f"{time.strftime('%H:%M:%S')}  {len(runs)} runs{rest}", columns, runs)
    if not runs:
        yield "No runs here: --runs-dir names the directory that holds them."
    for run in runs:
        if run["detail"] and run["state"] not in ("running", "finished", "created"):
            yield f"{run['name']}: {run['state']}, {run['detail']}"
    if found["nodes"]:
        columns = {
            "node": lambda node: node["name"] if node["is_alive"] else f"{node['name']} (dead)",
            "of": "of",
            "CPU": lambda node: _percent(node["cpu_ratio"]),
            "load": "load_average",
            "memory GB": lambda node: _gigabytes(node["memory_bytes"]),
            "memory": lambda node: _percent(node["memory_ratio"]),
            "disk free GB": lambda node: _gigabytes(node["disk_free_bytes"], 0),
            "GPUs: busy, memory": lambda node: "  ".join(map(_gpu, node["gpus"])) or None,
        }
        yield _table("nodes", columns, found["nodes"])
    if found["data"]:
        columns = {
            "data job": "job",
            "stage": "artefact",
            "": lambda own: "running" if own["is_running"] else "waits for the same command",
            "shards": lambda own: f"{own['progress']['done']:,}/{own['progress']['total']:,}",
            "MB/s": lambda own: own["bytes_per_s"] / 1e6,
            "rejects": lambda own: own["progress"]["rejects"],
            "time left": lambda own: _duration(own["seconds_left"]),
            "last shard": lambda own: age(own["progress"]["last_s"]),
            "status": lambda own: own["status"] or None,
        }
        yield _table("data jobs", columns, found["data"])
    if found["jobs"]:
        counts = (f"{own['count']} {own['verb']} {own['status']}" for own in found["jobs"])
        yield f"jobs: {', '.join(counts)}"
    if found["problem"]:
        yield found["problem"]


def _table(title: str, columns: Mapping[str, output.Column], rows: Sequence[Any]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        left = number < 2 or column in ("", "status")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in output.cells_of(rows, columns):
        table.add_row(*(Text(output.shown(cell), _COLORS.get(str(cell), "")) for cell in row))
    return table


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _gigabytes(size: float | None, digits: int = 1) -> str | None:
    return None if size is None else f"{size / 1e9:,.{digits}f}"


def _gpu(gpu: Mapping[str, Any]) -> str:
    return f"{_percent(gpu['ratio']) or '-'} {_percent(gpu['memory_ratio']) or '-'}"


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else output.duration(seconds, 0)


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
    log_format: output.LogFormat = None,
) -> None:
    """Serve metrics for Prometheus until it is stopped. It reads files only, and disturbs no run."""
    if context.invoked_subcommand is not None:
        return
    from pipeline.watch.overview import ClusterWatch
    from pipeline.watch.prometheus import ClozeCollector, exposition, serve
    from pipeline.watch.run_status import RunsReader

    reader = RunsReader(runs_dirs or [Path("runs")], days=days, most=most)
    collector = ClozeCollector(reader, data_dirs or [], None if address is None else ClusterWatch(address))
    if once:
        sys.stdout.write(exposition(collector))
        return
    with serve(collector, host, port) as (url, thread):
        typer.echo(f"metrics: {url}", err=True)
        typer.echo("Next: cloze metrics files DIR writes a configuration, alerts and a dashboard", err=True)
        thread.join()


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
