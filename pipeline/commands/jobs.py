"""Verbs as jobs of a Ray cluster: `cloze submit`, `jobs`, `logs`, `stop`; and one job or run for its operator,
`describe`, or in one file for others, `support-bundle`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_MIB = 1024**2

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ray cluster, such as http://HOST:8265. Without it: RAY_API_SERVER_ADDRESS, then RAY_ADDRESS,"
        " then the local cluster.",
    ),
]
JobId = Annotated[str, typer.Argument(help="Submission id, as `cloze jobs` shows it.")]


def submit(
    context: typer.Context,
    verb: Annotated[
        list[str], typer.Argument(metavar="-- VERB ...", help="The verb to run, as one would type it here.")
    ],
    address: Address = None,
    wait: Annotated[bool, typer.Option(help="Show the log until the job ends; exit as it does.")] = False,
    driver_memory: Annotated[
        int, typer.Option(help="MiB of memory reserved for the verb itself, wherever it runs.")
    ] = 512,
    driver_gpus: Annotated[
        float, typer.Option(help="GPUs for the verb itself, besides the GPUs of its workers.")
    ] = 0,
    python: Annotated[
        str | None,
        typer.Option(help="Python of the cluster. Default: `python`, and this one on the local cluster."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="A variable for the job: NAME=VALUE, or NAME to pass on its value from here."),
    ] = None,
    local_cpus: Annotated[
        int | None, typer.Option(help="Logical CPUs of the local cluster, if this starts it.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Of training: nodes; with --gpus-per-node, a worker for each GPU."),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=0, help="Of training: GPUs of each node; 0 trains on CPUs, a worker a node."),
    ] = None,
    elastic: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="Of training: workers; as many as the cluster has room for."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0, help="Times to start the verb again after failures that may pass (30, 31, 32, 34)."
        ),
    ] = 0,
    after: Annotated[
        list[str] | None, typer.Option(help="A job that must succeed first; repeatable.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Run a verb as a job that outlives this terminal; the same work is not started twice."""
    from cluster.jobs import find_job
    from pipeline.run import submission

    sized = submission.with_group_size(verb, nodes, gpus_per_node, elastic)
    prepared, variables = submission.prepare(context.obj, sized), submission.given_variables(env or [])
    _start_if_needed(address, local_cpus)
    client = _connect(address)
    for job in after or []:
        find_job(client, job)
    resources = {"memory_bytes": driver_memory * _MIB, "num_gpus": driver_gpus}
    job, started = submission.submit(
        client,
        prepared,
        retries=retries,
        after=after or (),
        python=python,
        variables=variables,
        **resources,
    )
    _report(client, job, started, wait, as_json)


def jobs(address: Address = None, as_json: output.Json = False) -> None:
    """List cloze's jobs of the cluster, newest first; `ray job list` has all of them."""
    from cluster.jobs import list_jobs
    from pipeline.run.submission import VERB_KEY

    client = _connect(address)
    found = [_facts(job) for job in list_jobs(client) if VERB_KEY in (job.metadata or {})]
    columns = {
        "submission id": "submission_id",
        "verb": "verb",
        "status": _status,
        "start": lambda row: (
            f"{datetime.fromtimestamp(row['start_s']):%Y-%m-%d %H:%M:%S}" if row["start_s"] else "-"
        ),
        "duration": lambda row: str(timedelta(seconds=round(row["duration_s"]))) if row["start_s"] else "-",
    }
    title = f"jobs of {client.get_address()}"
    if output.show(found, title, as_json=as_json, columns=columns) and not found:
        typer.echo("None yet. Start one: cloze submit -- VERB ...")


def logs(
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the job ends.")
    ] = False,
    address: Address = None,
) -> None:
    """Print the log of a job."""
    from cluster.jobs import follow_logs, read_logs

    client = _connect(address)
    if follow:
        follow_logs(client, job, _write)
    else:
        _write(read_logs(client, job))


def stop(
    job: Annotated[str | None, typer.Argument(help="Submission id, as `cloze jobs` shows it.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Stop the local cluster with everything on it.")
    ] = False,
    address: Address = None,
) -> None:
    """Stop a job, which saves first if it trains; or the local cluster."""
    if cluster == (job is not None):
        raise typer.BadParameter("name either a JOB or --cluster")
    if job is None:
        from cluster.local_cluster import stop_local_cluster

        stopped = stop_local_cluster()
        typer.echo(f"Stopped the cluster at {stopped.address}." if stopped else "No local cluster runs.")
        return
    from cluster.jobs import stop as stop_job

    ended, by_us = stop_job(_connect(address), job)
    if not by_us:
        typer.echo(f"{job} had ended already: {_status(_facts(ended))}.")
        return
    typer.echo(
        f"{job} is stopped ({_status(_facts(ended))}). What it committed is kept; its log: cloze logs {job}"
    )


def _connect(address: str | None) -> JobSubmissionClient:
    from cluster.jobs import connect
    from cluster.local_cluster import resolve_address

    return connect(resolve_address(address))


def _start_if_needed(address: str | None, num_cpus: int | None) -> None:
    """Start the local cluster unless it runs, or another cluster is named."""
    from cluster.connecting import named_address
    from cluster.local_cluster import STOP_COMMAND, find_local_cluster, start_local_cluster

    if not named_address(address) and not find_local_cluster():
        started = start_local_cluster(num_cpus)
        typer.echo(f"Started a local cluster at {started.address}; to stop it: {STOP_COMMAND}", err=True)


def _report(
    client: JobSubmissionClient, submission_id: str, started: bool, wait: bool, as_json: bool
) -> None:
    """Say what was submitted, or that it runs already; with `wait`, end as the job ends."""
    from cluster.jobs import find_job, follow_logs
    from cluster.local_cluster import own_cluster_at
    from cluster.signals import continued_by

    job = find_job(client, submission_id)
    submitted = {"started": started, "address": client.get_address()}
    if as_json and not wait:
        output.print_json(_facts(job) | submitted)
        return
    if not started:
        status = job.status.value.lower()
        typer.echo(f"Not started again: the very same work is {status} as {submission_id}.", err=True)
    typer.echo(submission_id)
    if not wait:
        address = "" if own_cluster_at(client.get_address()) else f" --address {client.get_address()}"
        where = f"{submission_id}{address}"
        typer.echo(f"\nNext: cloze logs --follow {where}   |   cloze stop {where}", err=True)
        return
    follow = f"cloze logs --follow {submission_id}"
    with continued_by(follow, kept=f"the job, which continues; to end it: cloze stop {submission_id}"):
        ended = follow_logs(client, submission_id, _write)
    if as_json:
        output.print_json(_facts(ended) | submitted)
    typer.echo(f"{submission_id}: {_status(_facts(ended))}", err=True)
    if ended.status != "SUCCEEDED":
        raise typer.Exit(ended.driver_exit_code or 1)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _facts(job: JobDetails) -> dict[str, Any]:
    from pipeline.watch.description import job_facts

    facts = job_facts(job)
    start_s, end_s = facts["start_s"], facts["end_s"] or time.time()
    return facts | {"duration_s": None if start_s is None else end_s - start_s}


def _status(job: Mapping[str, Any]) -> str:
    code = job["exit_code"]
    return job["status"] if code in (None, 0) else f"{job['status']}, exit code {code}"


_ERROR_LINES = 8


def describe(
    name: Annotated[str, typer.Argument(metavar="JOB", help="A submission id of `cloze jobs`, or a run.")],
    runs_dir: output.RunsDir = Path("runs"),
    address: Address = None,
    as_json: output.Json = False,
) -> None:
    """Say what a job or run is, where it runs, how often it was restarted, and what its exit code means."""
    from pipeline.watch.description import describe as describe_job

    found = describe_job(name, runs_dir, _find_job(name, address))
    if as_json:
        output.print_json(found)
        return
    job, run, ending = found["job"] or {}, found["run"] or {}, found["ending"] or {}
    step, of, saved = run.get("step"), run.get("num_steps"), run.get("checkpoint_step")
    lines = found["error"].splitlines()
    if lines[_ERROR_LINES:]:
        lines = [*lines[:_ERROR_LINES], "... (--json has all of it)"]
    rows = {
        "job": job.get("submission_id") or run.get("submission_id"),
        "verb": job.get("verb"),
        "status": job.get("status"),
        "command": job.get("entrypoint"),
        "configuration": found["config_hash"],
        "run": run.get("place"),
        "MLflow run": run.get("run_id"),
        "state": ", ".join(filter(None, (run.get("state"), run.get("detail")))),
        "step": None if step is None else f"{step:,}" + (f" of {of:,}" if of else ""),
        "checkpoint": None if saved is None else f"at step {saved:,}",
        "nodes": ", ".join(found["nodes"]),
        "restarts": run.get("restarts"),
        "events": ", ".join(f"{count} {event}" for event, count in run.get("events", {}).items()),
        "exit code": ending.get("exit_code"),
        "meaning": ": ".join(filter(None, (ending.get("error"), ending.get("meaning")))),
        "runbook": ending.get("runbook"),
        "error": "\n".join(lines),
    }
    output.print_mapping(name, {key: value for key, value in rows.items() if value not in (None, "")})
    typer.echo(f"\nNext: {found['command']}")


def _find_job(name: str, address: str | None) -> JobDetails | None:
    """The job with this id; None where no cluster runs or it knows none, and, with a word on stderr, where the
    environment's cluster does not answer."""
    from cluster.artefacts.errors import ClusterUnreachableError, ReferenceNotFoundError
    from cluster.connecting import named_address
    from cluster.local_cluster import find_local_cluster

    try:
        if not named_address(address) and not find_local_cluster():
            return None
        from cluster.jobs import find_job

        return find_job(_connect(address), name)
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
        str, typer.Argument(metavar="RUN", help="A run, a job that drives one, or a damaged run's directory.")
    ],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write.", show_default="support-RUN.tar.gz")
    ] = None,
    runs_dir: output.RunsDir = Path("runs"),
    address: Address = None,
    plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Add the run's plan, which takes seconds.")
    ] = True,
    as_json: output.Json = False,
) -> None:
    """Collect settings, events, logs, versions, plan and checks of a run in one file; secrets are removed."""
    from pipeline.watch.description import (
        find_remains,
        last_lines,
        part_of_plan,
        parts_of_machine,
        parts_of_run,
        write_bundle,
    )
    from pipeline.watch.run_status import read_status

    run = find_remains(name, runs_dir)
    submission_id = read_status(run).submission_id
    job = _find_job(submission_id, address) if submission_id else None
    file = out or Path(f"support-{run.path.resolve().name}.tar.gz")
    output.require_place(file)
    parts = [*parts_of_run(run, job), *parts_of_machine(run.path.parent)]
    if plan:
        parts.append(part_of_plan(run))
    if job is not None:
        from cluster.jobs import read_logs

        parts.append(("job-log.txt", lambda: last_lines(read_logs(_connect(address), submission_id))))
    made = write_bundle(run, parts, file)
    if as_json:
        output.print_json(made)
        return
    size = f"{len(made['names'])} files, {made['size_bytes'] / 1024:,.0f} KiB"
    typer.echo(f"{file}: {size}, {made['removed']} secrets removed")
    for problem in made["problems"]:
        typer.echo(f"left out: {problem.partition(chr(10))[0]}", err=True)
    typer.echo(f"Next: read it (tar -tzf {file}), then attach it to your report", err=True)
