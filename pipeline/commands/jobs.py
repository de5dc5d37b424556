"""`cloze submit`, `cloze jobs`, `cloze logs` and `cloze stop`: verbs as jobs of a Ray cluster."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import Json, print_json, print_table

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from cluster.jobs import Job
    from pipeline.runs.submission import Submission

_MIB = 1024**2

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ray cluster, such as http://HOST:8265. Without it: RAY_API_SERVER_ADDRESS, then RAY_ADDRESS,"
        " then the own local cluster.",
        show_default=False,
    ),
]
JobId = Annotated[str, typer.Argument(help="Submission id, as `cloze jobs` shows it.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add this file's verbs to the command line; `submit` knows the other verbs from `app`."""

    @app.command(context_settings={"ignore_unknown_options": True})
    def submit(
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
            float, typer.Option(help="GPUs for the verb itself, besides those of its workers.")
        ] = 0,
        python: Annotated[
            str | None,
            typer.Option(
                help="Python of the cluster. Default: `python`, and this one on the own local cluster."
            ),
        ] = None,
        env: Annotated[
            list[str] | None,
            typer.Option(help="A variable for the job: NAME=VALUE, or NAME to pass on its value from here."),
        ] = None,
        local_cpus: Annotated[
            int | None, typer.Option(help="Logical CPUs of the own local cluster, if this starts it.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Run a verb as a job that outlives this terminal; the same work is not started twice."""
        from pipeline.runs.submission import prepare

        submission = prepare(app, verb)
        options = {"memory_bytes": driver_memory * _MIB, "num_gpus": driver_gpus}
        _submit(
            submission, _own_or(address, local_cpus), python, _variables(env or []), options, wait, as_json
        )

    app.command()(jobs)
    app.command()(logs)
    app.command()(stop)


def jobs(
    address: Address = None,
    everyone: Annotated[bool, typer.Option("--all", help="Also jobs that are not cloze's.")] = False,
    as_json: Json = False,
) -> None:
    """List the jobs of the cluster, newest first."""
    from cluster.job_client import connect, resolve_address
    from cluster.jobs import list_jobs

    client = connect(resolve_address(address))
    found = [job for job in list_jobs(client) if everyone or "cloze_verb" in job.metadata]
    if as_json:
        print_json([_as_dict(job) for job in found])
        return
    columns = ("submission id", "verb", "status", "start", "duration", "MLflow run")
    print_table(f"jobs of {client.get_address()}", columns, [_as_row(job) for job in found])
    if not found:
        typer.echo("None yet. Start one: cloze submit -- VERB ...")


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    address: Address = None,
) -> None:
    """Print what a job has printed."""
    from cluster.job_client import connect, resolve_address
    from cluster.jobs import follow_logs, read_logs

    client = connect(resolve_address(address))
    if follow:
        follow_logs(client, job, _write)
    else:
        _write(read_logs(client, job))


def stop(
    job: Annotated[str | None, typer.Argument(help="Submission id, as `cloze jobs` shows it.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Stop the own local cluster with everything on it.")
    ] = False,
    address: Address = None,
) -> None:
    """Stop a job, which saves first if it trains; or the own local cluster."""
    if cluster == (job is not None):
        raise typer.BadParameter("name either a JOB or --cluster")
    if job is None:
        _stop_cluster()
        return
    from cluster.job_client import connect, resolve_address
    from cluster.jobs import stop as stop_job

    ended, by_us = stop_job(connect(resolve_address(address)), job)
    if not by_us:
        typer.echo(f"{job} had ended already: {_status(ended)}.")
        return
    _settle(ended)
    typer.echo(f"{job} is stopped ({_status(ended)}). What it committed is kept; its log: cloze logs {job}")


def _own_or(address: str | None, local_cpus: int | None) -> str:
    """The cluster that is meant; the own local one is started when none is."""
    from cluster.job_client import named_address
    from cluster.local_cluster import STOP_COMMAND, find_local_cluster, start_local_cluster

    if named := named_address(address):
        return named
    if running := find_local_cluster():
        return running.address
    started = start_local_cluster(local_cpus)
    typer.echo(f"Started an own local cluster at {started.address}; to stop it: {STOP_COMMAND}", err=True)
    return started.address


def _submit(
    submission: Submission,
    address: str,
    python: str | None,
    variables: dict[str, str],
    options: dict[str, Any],
    wait: bool,
    as_json: bool,
) -> None:
    from cluster.job_client import connect
    from cluster.jobs import JobRequest, attempts, next_id
    from cluster.jobs import submit as submit_job
    from cluster.local_cluster import own_cluster_at
    from pipeline.runs.submission import code_to_ship, environment_of

    client = connect(address)
    earlier = attempts(client, submission.base_id)
    if earlier and earlier[-1].active:
        _report(client, earlier[-1].submission_id, False, wait, as_json)
        return
    if earlier:
        _settle(earlier[-1], only_reserved=True)
    submission_id = next_id(submission.base_id, earlier)
    run_id = submission.reserve_run()
    request = JobRequest(
        arguments=(
            python or (sys.executable if own_cluster_at(client.get_address()) else "python"),
            *("-m", "pipeline.cli"),
            *submission.arguments,
        ),
        metadata=submission.metadata(run_id),
        environment=environment_of(submission, submission_id, run_id) | variables,
        packages=code_to_ship(),
        start_directory=Path.cwd(),
        **submission.stopping(),
        **options,
    )
    try:
        started = submit_job(client, submission_id, request)
    except BaseException:
        submission.give_back(run_id)
        raise
    if not started:
        submission.give_back(run_id)
    _report(client, submission_id, started, wait, as_json)


def _report(
    client: JobSubmissionClient, submission_id: str, started: bool, wait: bool, as_json: bool
) -> None:
    """Say what was submitted, or that it runs already; with `wait`, end as the job ends."""
    from cluster.jobs import find_job, follow_logs
    from cluster.signals import goes_on_by

    job = find_job(client, submission_id)
    if as_json and not wait:
        print_json({**_as_dict(job), "started": started, "address": client.get_address()})
        return
    if not started:
        typer.echo(
            f"Not started again: the very same work is {job.status.lower()} as {submission_id}.", err=True
        )
    typer.echo(submission_id)
    if not wait:
        where = f"{submission_id} --address {client.get_address()}" if _is_foreign(client) else submission_id
        typer.echo(f"\nNext: cloze logs --follow {where}   |   cloze stop {where}", err=True)
        return
    follow = f"cloze logs --follow {submission_id}"
    with goes_on_by(follow, kept=f"the job, which goes on; to end it: cloze stop {submission_id}"):
        ended = follow_logs(client, submission_id, _write)
    _settle(ended)
    if as_json:
        print_json({**_as_dict(ended), "started": started, "address": client.get_address()})
    typer.echo(f"{submission_id}: {_status(ended)}", err=True)
    if ended.status != "SUCCEEDED":
        raise typer.Exit(ended.exit_code or 1)


def _is_foreign(client: JobSubmissionClient) -> bool:
    from cluster.local_cluster import own_cluster_at

    return own_cluster_at(client.get_address()) is None


def _stop_cluster() -> None:
    from cluster.local_cluster import stop_local_cluster

    stopped = stop_local_cluster()
    typer.echo(f"Stopped the cluster at {stopped.address}." if stopped else "No own local cluster runs.")


def _settle(job: Job, *, only_reserved: bool = False) -> None:
    """Set the status of the job's MLflow run; tracking that is down is no reason to fail."""
    from cluster.artefacts.errors import TrackingUnreachableError
    from pipeline.runs.submission import settle_run

    try:
        settle_run(job, only_reserved=only_reserved)
    except TrackingUnreachableError as error:
        typer.echo(f"The status of MLflow run {job.metadata['mlflow_run_id']} stays: {error}", err=True)


def _variables(given: list[str]) -> dict[str, str]:
    """`["A=1", "B"]` as variables; B has its value from here."""
    import os

    from cluster.artefacts.credentials import has_credentials
    from cluster.artefacts.errors import ConfigError

    unset = [entry for entry in given if "=" not in entry and entry not in os.environ]
    if unset:
        raise ConfigError(f"--env {', '.join(unset)}: not set here.", next_step="write --env NAME=VALUE")
    pairs = [entry.partition("=") if "=" in entry else (entry, "=", os.environ[entry]) for entry in given]
    variables = {name: value for name, _, value in pairs}
    if told := [name for name, value in variables.items() if has_credentials(value)]:
        raise ConfigError(
            f"--env {', '.join(told)}: holds credentials, and all who may look at the cluster see a job's environment.",
            next_step="set the variable on the cluster's machines",
        )
    return variables


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _status(job: Job) -> str:
    return job.status if job.exit_code in (None, 0) else f"{job.status}, exit code {job.exit_code}"


def _as_row(job: Job) -> tuple[str, ...]:
    start = datetime.fromtimestamp(job.start_s).strftime("%Y-%m-%d %H:%M:%S") if job.start_s else "-"
    took = "-" if job.duration_s is None else str(timedelta(seconds=round(job.duration_s)))
    verb, run = job.metadata.get("cloze_verb", "-"), job.metadata.get("mlflow_run_id", "-")
    return job.submission_id, verb, _status(job), start, took, run


def _as_dict(job: Job) -> dict[str, Any]:
    return {
        "submission_id": job.submission_id,
        "verb": job.metadata.get("cloze_verb"),
        "status": job.status,
        "exit_code": job.exit_code,
        "message": job.message,
        "start_s": job.start_s,
        "end_s": job.end_s,
        "duration_s": job.duration_s,
        "mlflow_run_id": job.metadata.get("mlflow_run_id"),
        "config_hash": job.metadata.get("config_hash"),
        "entrypoint": job.entrypoint,
    }
