"""`cloze submit`, `cloze jobs`, `cloze logs` and `cloze stop`: verbs as jobs of a Ray cluster."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import Json, print_json, print_table

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_MIB = 1024**2

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ray cluster, such as http://HOST:8265. Without it: RAY_API_SERVER_ADDRESS, then RAY_ADDRESS,"
        " then the local cluster.",
        show_default=False,
    ),
]
JobId = Annotated[str, typer.Argument(help="Submission id, as `cloze jobs` shows it.", show_default=False)]


def submit(
    context: typer.Context,
    verb: Annotated[
        list[str],
        typer.Argument(metavar="-- VERB ...", help="The verb to run, as one would type it here."),
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
    as_json: Json = False,
) -> None:
    """Run a verb as a job that outlives this terminal; the same work is not started twice."""
    from cluster.jobs import find_job
    from pipeline.run import submission

    sized = submission.with_group_size(verb, nodes, gpus_per_node, elastic)
    prepared, variables = submission.prepare(context.obj, sized), _variables(env or [])
    _start_if_needed(address, local_cpus)
    client = _connect(address)
    for job in after or []:
        find_job(client, job)
    resources = {"memory_bytes": driver_memory * _MIB, "num_gpus": driver_gpus}
    conditions = submission.Conditions(retries=retries, after=tuple(after or ()))
    job, started = submission.submit(
        client, prepared, conditions, python=python, variables=variables, **resources
    )
    _report(client, job, started, wait, as_json)


def jobs(address: Address = None, as_json: Json = False) -> None:
    """List cloze's jobs of the cluster, newest first; `ray job list` has all of them."""
    from cluster.jobs import list_jobs
    from pipeline.run.submission import VERB_KEY

    client = _connect(address)
    found = [job for job in list_jobs(client) if VERB_KEY in (job.metadata or {})]
    if as_json:
        print_json([_as_dict(job) for job in found])
        return
    columns = ("submission id", "verb", "status", "start", "duration")
    print_table(f"jobs of {client.get_address()}", columns, [_as_row(job) for job in found])
    if not found:
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
        typer.echo(f"{job} had ended already: {_status(ended)}.")
        return
    typer.echo(f"{job} is stopped ({_status(ended)}). What it committed is kept; its log: cloze logs {job}")


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
        print_json(_as_dict(job) | submitted)
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
        print_json(_as_dict(ended) | submitted)
    typer.echo(f"{submission_id}: {_status(ended)}", err=True)
    if ended.status != "SUCCEEDED":
        raise typer.Exit(ended.driver_exit_code or 1)


def _variables(given: list[str]) -> dict[str, str]:
    """`["A=1", "B"]` as variables; B has its value from this process's environment."""
    from cluster.artefacts.credentials import has_credentials
    from cluster.artefacts.errors import ConfigError

    unset = [entry for entry in given if "=" not in entry and entry not in os.environ]
    if unset:
        raise ConfigError(f"--env {', '.join(unset)}: not set here.", next_step="write --env NAME=VALUE")
    pairs = [entry.partition("=") if "=" in entry else (entry, "=", os.environ[entry]) for entry in given]
    variables = {name: value for name, _, value in pairs}
    if secret := [name for name, value in variables.items() if has_credentials(value)]:
        raise ConfigError(
            f"--env {', '.join(secret)}: holds credentials, and all users of the cluster see a job's"
            " environment.",
            next_step="set the variable on the cluster's machines",
        )
    return variables


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _status(job: JobDetails) -> str:
    code = job.driver_exit_code
    return job.status.value if code in (None, 0) else f"{job.status.value}, exit code {code}"


def _as_row(job: JobDetails) -> tuple[str, ...]:
    shown = _as_dict(job)
    start, took = "-", "-"
    if shown["start_s"]:
        start = datetime.fromtimestamp(shown["start_s"]).strftime("%Y-%m-%d %H:%M:%S")
        took = str(timedelta(seconds=round(shown["duration_s"])))
    return shown["submission_id"], shown["verb"] or "-", _status(job), start, took


def _as_dict(job: JobDetails) -> dict[str, Any]:
    from pipeline.watch.description import job_facts

    facts = job_facts(job)
    start_s, end_s = facts["start_s"], facts["end_s"] or time.time()
    duration_s = None if start_s is None else end_s - start_s
    return facts | {"exit_code": job.driver_exit_code, "duration_s": duration_s}
