"""`cloze support-bundle`: everything about a run in one file, without secrets."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.describe import find_job
from pipeline.commands.jobs import Address
from pipeline.commands.output import Json, RunsDir, print_json, require_place

if TYPE_CHECKING:
    from pipeline.run.directory import RunDirectory


def support_bundle(
    name: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, a job that drives one, or a damaged run's directory."),
    ],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write.", show_default="support-RUN.tar.gz")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    address: Address = None,
    plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Add the run's plan, which takes seconds.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Collect settings, events, logs, versions, plan and checks of a run in one file; secrets are removed."""
    from pipeline.watch.support_bundle import part_of_plan, parts_of_machine, parts_of_run, write_bundle

    run, job, log = _found(name, runs_dir, address)
    file = out or Path(f"support-{run.path.resolve().name}.tar.gz")
    require_place(file)
    parts = [
        *parts_of_run(run, job),
        *parts_of_machine(run.path.parent),
        *([part_of_plan(run)] if plan else []),
    ]
    made = write_bundle(run, [*parts, *log], file)
    if as_json:
        print_json(asdict(made))
        return
    typer.echo(
        f"{made.file}: {len(made.names)} files, {made.size_bytes / 1024:,.0f} KiB, {made.removed} secrets removed"
    )
    for problem in made.problems:
        print(f"left out: {problem.partition(chr(10))[0]}", file=sys.stderr)
    typer.echo(f"Next: read it (tar -tzf {made.file}), then attach it to your report", err=True)


def _found(name: str, runs_dir: Path, address: str | None) -> tuple[RunDirectory, Any, list[Any]]:
    """The run, its job, and the part with the job's log."""
    from cluster.artefacts.errors import ReferenceNotFoundError
    from pipeline.run.directory import RunDirectory
    from pipeline.watch.description import run_of
    from pipeline.watch.run_status import RunReader
    from pipeline.watch.support_bundle import was_a_run

    places = [path for path in (Path(name), runs_dir / name) if path.is_dir()]
    damaged = next((path for path in places if was_a_run(path)), None)
    try:
        run = run_of(name, runs_dir, is_job=False)
    except ReferenceNotFoundError:
        if damaged is None:
            raise
        run = RunDirectory(damaged)
    assert run is not None
    if not (submission_id := RunReader(run).read().submission_id):
        return run, None, []
    job = find_job(submission_id, address)
    return run, job, [] if job is None else [("job-log.txt", lambda: _log_of(submission_id, address))]


def _log_of(submission_id: str, address: str | None) -> str:
    from cluster.jobs import connect, read_logs
    from cluster.local_cluster import resolve_address

    lines = read_logs(connect(resolve_address(address)), submission_id).splitlines(keepends=True)
    return "".join(lines[-1000:])
