"""`cloze describe` and `cloze support-bundle`: one job or run for its operator, or in one file for others."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.jobs import Address
from pipeline.commands.output import Json, RunsDir, print_json, print_mapping, require_place

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

    from pipeline.run.directory import RunDirectory


_ERROR_LINES = 8


def describe(
    name: Annotated[
        str,
        typer.Argument(metavar="JOB", help="A submission id of `cloze jobs`, or a run.", show_default=False),
    ],
    runs_dir: RunsDir = Path("runs"),
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Say what a job or run is, where it runs, how often it was restarted, and what its exit code means."""
    from pipeline.watch.description import describe as describe_job

    found = describe_job(name, runs_dir, _find_job(name, address))
    if as_json:
        print_json(asdict(found))
        return
    job, run, ending = found.job or {}, found.run, found.ending
    lines = found.error.splitlines()
    if lines[_ERROR_LINES:]:
        lines = [*lines[:_ERROR_LINES], "... (--json has all of it)"]
    rows = {
        "job": job.get("submission_id") or (run.submission_id if run else "") or None,
        "verb": job.get("verb"),
        "status": job.get("status"),
        "command": job.get("entrypoint"),
        "configuration": found.config_hash or None,
        "run": run.place if run else None,
        "MLflow run": run.run_id or None if run else None,
        "state": (f"{run.state}, {run.detail}" if run.detail else run.state) if run else None,
        "step": (f"{run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "")) if run else None,
        "checkpoint": f"at step {run.checkpoint_step:,}" if run and run.checkpoint_step is not None else None,
        "nodes": ", ".join(found.nodes) or None,
        "restarts": run.restarts if run else None,
        "events": ", ".join(f"{count} {event}" for event, count in run.events.items()) if run else None,
        "exit code": ending.exit_code if ending else None,
        "meaning": (f"{ending.error}: {ending.meaning}".strip(": ") or None) if ending else None,
        "runbook": ending.runbook or None if ending else None,
        "error": "\n".join(lines) or None,
    }
    print_mapping(name, {key: value for key, value in rows.items() if value is not None})
    typer.echo(f"\nNext: {found.command}")


def _find_job(name: str, address: str | None) -> JobDetails | None:
    """The job with this id; None where no cluster runs or it knows none, and, with a word on stderr, where the
    environment's cluster does not answer."""
    from cluster.artefacts.errors import ClusterUnreachableError, ReferenceNotFoundError
    from cluster.connecting import named_address
    from cluster.local_cluster import find_local_cluster

    try:
        if not (where := named_address(address)):
            local = find_local_cluster()
            where = local.address if local else None
        if where is None:
            return None
        from cluster.jobs import connect
        from cluster.jobs import find_job as find

        return find(connect(where), name)
    except ReferenceNotFoundError:
        return None
    except ClusterUnreachableError as error:
        if address is not None:
            raise
        # The run is described all the same, by its own files.
        print(f"Without its job: {error.problem}", file=sys.stderr)
        return None


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
    job = _find_job(submission_id, address)

    def log() -> str:
        from cluster.jobs import connect, read_logs
        from cluster.local_cluster import resolve_address

        lines = read_logs(connect(resolve_address(address)), submission_id).splitlines(keepends=True)
        return "".join(lines[-1000:])

    return run, job, [] if job is None else [("job-log.txt", log)]
