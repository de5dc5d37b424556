"""One job or run as an operator asks for it: what it is, where it is, how it ended, and the page to read."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import signals
from cluster.artefacts.errors import ClozeError, ReferenceNotFoundError, exit_codes
from pipeline.run.directory import RunDirectory, find_run, list_runs
from pipeline.run.events import Event
from pipeline.run.submission import CONFIG_KEY, VERB_KEY
from pipeline.watch.run_status import RunReader, RunStatus, submission_of

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_OTHERS = {
    0: "success",
    2: "a command line that cannot be read; --help shows how it is typed",
    signals.EXIT_CODES[signal.SIGINT]: "Ctrl-C",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended."""

    exit_code: int
    error: str
    """Name of the error's class; empty for none."""
    meaning: str
    runbook: str
    """Page below the project; empty for none."""


def ending_of(exit_code: int) -> Ending:
    """The meaning of an exit code."""
    if error := exit_codes().get(exit_code):
        meaning = re.sub(r"\s+", " ", (error.__doc__ or "").partition("\n\n")[0]).strip()
        return Ending(
            exit_code, error.__name__, meaning, f"runbooks/{error.runbook}" if error.runbook else ""
        )
    if exit_code in _OTHERS:
        return Ending(exit_code, "", _OTHERS[exit_code], "")
    # Shells add 128 to the number of the signal that ended a program.
    number = -exit_code if exit_code < 0 else exit_code - 128
    with suppress(ValueError):
        name = signal.Signals(number).name
        page = "out-of-memory.md" if number == signal.SIGKILL else "resume-after-a-failure.md"
        return Ending(exit_code, "", f"killed by {name}", f"runbooks/{page}")
    return Ending(exit_code, "", "no documented exit code: a bug of cloze, or of another program", "")


@dataclass(frozen=True, slots=True)
class Description:
    """A job, the run that it drives or drove, or both."""

    job: Mapping[str, Any] | None
    """The job as the cluster knows it; None for a run without one, or whose cluster forgot it."""
    run: RunStatus | None
    """None for verbs that train no run."""
    ending: Ending | None
    """None while it runs, or if the end was not recorded."""
    config_hash: str
    """Hash of the configuration that the job resolved to, else of the run's stored one; empty for a verb without
    one."""
    nodes: tuple[str, ...]
    """Hosts of the driver and of the workers."""
    error: str
    """The last error of the run, as it was reported then; empty without one."""
    command: str
    """To continue, or to see more."""


def describe(name: str, runs_dir: Path, job: JobDetails | None) -> Description:
    """Describe a job or a run.

    Args:
        name: as it was asked for: a submission id, or a run's name, directory or MLflow run id.
        job: the job of that id, if a cluster knows one.

    Raises:
        ReferenceNotFoundError: it is neither.
    """
    run = run_of(name, runs_dir, job is not None)
    if run is None:
        status, events, command = None, [], f"cloze logs {name}"
    else:
        status, events = RunReader(run).read(), run.events()
        command = f"cloze top --runs-dir {run.path.parent}"
        if status.state in ("failed", "preempted", "lost"):
            command = f"cloze resume {run.typed}"
        elif status.state == "finished":
            command = f"cloze checkpoints {run.typed}"
    failures = [event for event in events if event["event"] == Event.FAILED]
    ended_badly = status is not None and status.state in ("failed", "preempted")
    metadata = {} if job is None else job.metadata or {}
    drivers = [str(event.get("host")) for event in events if event["event"] == Event.LAUNCHED][-1:]
    workers = [] if status is None else [str(worker.get("host")) for worker in status.workers]
    return Description(
        job=None if job is None else job_facts(job),
        run=status,
        ending=_ending(job, status, failures),
        config_hash=metadata.get(CONFIG_KEY) or ("" if status is None else status.config_hash),
        nodes=tuple(dict.fromkeys([*drivers, *workers])),
        error=str(failures[-1].get("message", "")) if failures and ended_badly else "",
        command=command,
    )


def run_of(name: str, runs_dir: Path, is_job: bool) -> RunDirectory | None:
    """The newest run that a job drives or drove, or the run of that name; None for a job without a run.

    Raises:
        ReferenceNotFoundError: there is neither; names the nearest run.
    """
    drives = []
    for run in list_runs(runs_dir):
        with suppress(ClozeError, OSError):
            launches = run.events(Event.LAUNCHED)
            jobs = {run.info.submission_id, *(event.get("submission_id") for event in launches)}
            if name in jobs | {submission_of(run.info, launches)}:
                drives.append(run)
    if drives:
        return max(drives, key=lambda run: RunReader(run).changed_s)
    try:
        return find_run(name, runs_dir)
    except ReferenceNotFoundError:
        if is_job:
            return None
        raise


def job_facts(job: JobDetails) -> dict[str, Any]:
    """A job as JSON-like data."""
    return {
        "submission_id": job.submission_id,
        "verb": (job.metadata or {}).get(VERB_KEY),
        "status": job.status.value,
        "message": job.message or "",
        "start_s": job.start_time / 1000 if job.start_time else None,
        "end_s": job.end_time / 1000 if job.end_time else None,
        "entrypoint": job.entrypoint,
    }


def _ending(
    job: JobDetails | None, status: RunStatus | None, failures: list[dict[str, Any]]
) -> Ending | None:
    if job is not None and job.driver_exit_code is not None:
        return ending_of(job.driver_exit_code)
    if job is not None or status is None:
        return None
    if status.state == "finished":
        return ending_of(0)
    if status.state in ("failed", "preempted") and failures:
        codes = {error.__name__: code for code, error in exit_codes().items()}
        name = str(failures[-1].get("error", ""))
        return ending_of(codes[name]) if name in codes else Ending(1, name, "", "")
    return None
