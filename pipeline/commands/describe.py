"""`cloze describe`: one job or run, with the meaning of its exit code."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.jobs import Address
from pipeline.commands.output import Json, RunsDir, print_json, print_mapping

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

    from pipeline.watch.description import Description

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

    found = describe_job(name, runs_dir, find_job(name, address))
    if as_json:
        print_json(asdict(found))
    else:
        _show(name, found)


def find_job(name: str, address: str | None) -> JobDetails | None:
    """The job with this id; None where no cluster runs or it knows none, and, with a word on stderr, where the
    environment's cluster does not answer.

    Raises:
        ClusterUnreachableError: the cluster at `address` does not answer.
    """
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


def _show(name: str, found: Description) -> None:
    job, run, ending = found.job or {}, found.run, found.ending
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
        "error": _shortened(found.error) or None,
    }
    print_mapping(name, {key: value for key, value in rows.items() if value is not None})
    typer.echo(f"\nNext: {found.command}")


def _shortened(text: str) -> str:
    """The beginning of a long message; `--json` has all of it."""
    lines = text.splitlines()
    return "\n".join(
        [*lines[:_ERROR_LINES], *(["... (--json has all of it)"] if lines[_ERROR_LINES:] else [])]
    )
