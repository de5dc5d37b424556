"""Jobs on a Ray cluster: submit once, list, follow, stop.

Knows commands, environments and metadata; what a command means is the caller's business.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.errors import ClozeError, ReferenceNotFoundError
from cluster.job_client import answering
from cluster.probe import require_dashboard
from cluster.signals import EXIT_LINE
from cluster.start_directory import START_DIRECTORY_VARIABLE

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ACTIVE = frozenset({"PENDING", "RUNNING"})
DRIVER_MEMORY_BYTES = 512 * 1024**2
STOP_GRACE_S = 15
"""Time that a job gets between being interrupted and being killed, unless it asks for more."""
_GRACE_KEY = "stop_grace_s"
"""Under which a job's metadata tells its time to whoever stops it."""
_POLL_S = 0.5
_SILENCE_S = 20.0
"""Silence of a followed log after which the cluster is asked whether it is still there."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the cluster knows of a job."""

    submission_id: str
    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    entrypoint: str
    metadata: Mapping[str, str]
    message: str
    """Why it waits or failed, in Ray's words."""
    exit_code: int | None
    """Of the command; None while it runs, or when it could not be started."""
    start_s: float | None
    """Unix time of the submission."""
    end_s: float | None

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.status in ACTIVE

    @property
    def duration_s(self) -> float | None:
        """Seconds from the submission to the end, or until now."""
        return None if self.start_s is None else (self.end_s or time.time()) - self.start_s


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A command to run once on the cluster, and what it needs there."""

    arguments: tuple[str, ...]
    """The command and its arguments; quoted for the shell here."""
    metadata: Mapping[str, str]
    environment: Mapping[str, str]
    packages: tuple[Path, ...] = ()
    """Directories and files that the command finds in its working directory; they travel with the job."""
    start_directory: Path | None = None
    """Where the job's workers start, and the command itself may: see `start_directory.py`. Must be shared by all
    machines, and `cluster` be among the packages. None leaves them in the directory of the packages."""
    memory_bytes: int = DRIVER_MEMORY_BYTES
    """Reserved for the command itself. A resource that is reserved lets Ray run it off the head node. It is
    memory and no share of a CPU, because that would leave too few CPUs for workers that take all of them."""
    num_gpus: float = 0
    """GPUs of the command itself, besides those of the workers it starts."""
    stop_signal: str = "SIGINT"
    """What stops it. SIGINT lets any command take leave of its workers and of tracking; SIGTERM is for those that
    answer it by saving."""
    stop_grace_s: int = STOP_GRACE_S
    """Seconds that it then has, until it is killed."""


def list_jobs(client: JobSubmissionClient) -> list[Job]:
    """All submitted jobs that the cluster remembers, newest first."""
    with answering(client.get_address()):
        details = client.list_jobs()
    jobs = [_with_exit_code(client, _job(each)) for each in details if each.submission_id]
    return sorted(jobs, key=lambda job: job.start_s or 0.0, reverse=True)


def find_job(client: JobSubmissionClient, submission_id: str) -> Job:
    """The job with this id.

    Raises:
        ReferenceNotFoundError: there is none; names the nearest.
    """
    jobs = {job.submission_id: job for job in list_jobs(client)}
    if submission_id in jobs:
        return jobs[submission_id]
    near = difflib.get_close_matches(submission_id, jobs, n=3, cutoff=0.4)
    hint = f" The nearest: {', '.join(near)}." if near else ""
    raise ReferenceNotFoundError(
        f"The cluster at {client.get_address()} has no job {submission_id}.{hint}", next_step="cloze jobs"
    )


def attempts(client: JobSubmissionClient, base_id: str) -> list[Job]:
    """The jobs `base_id`, `base_id-2`, `base_id-3` ..., in this order."""
    matches = [
        (re.fullmatch(rf"{re.escape(base_id)}(?:-(\d+))?", job.submission_id), job)
        for job in list_jobs(client)
    ]
    numbered = [(int(match[1] or 1), job) for match, job in matches if match]
    return [job for _, job in sorted(numbered, key=lambda pair: pair[0])]


def next_id(base_id: str, earlier: Sequence[Job]) -> str:
    """The submission id of the attempt that follows the earlier ones."""
    if not earlier:
        return base_id
    last = earlier[-1].submission_id.removeprefix(base_id)
    return f"{base_id}-{int(last.lstrip('-') or 1) + 1}"


def submit(client: JobSubmissionClient, submission_id: str, request: JobRequest) -> bool:
    """Hand a command to the cluster; False when somebody else submitted this id a moment before."""
    environment = {
        **request.environment,
        # The shipped code runs, also where the start directory holds packages of the same names.
        "PYTHONSAFEPATH": "1",
        "RAY_JOB_STOP_SIGNAL": request.stop_signal,
        "RAY_JOB_STOP_WAIT_TIME_S": str(request.stop_grace_s),
    }
    runtime_env: dict[str, Any] = {"env_vars": environment}
    if request.start_directory:
        environment[START_DIRECTORY_VARIABLE] = str(request.start_directory)
        # Ray Train would take its workers to a scratch directory of its own.
        environment["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
        runtime_env["worker_process_setup_hook"] = "cluster.start_directory.enter_start_directory"
    with answering(client.get_address()), _staged(request.packages) as working_dir:
        try:
            client.submit_job(
                entrypoint=shlex.join(request.arguments),
                submission_id=submission_id,
                runtime_env={**runtime_env, "working_dir": str(working_dir)},
                metadata={**request.metadata, _GRACE_KEY: str(request.stop_grace_s)},
                entrypoint_memory=request.memory_bytes,
                entrypoint_num_gpus=request.num_gpus or None,
            )
        except RuntimeError as error:
            if "already exists" in str(error):
                return False
            raise ClozeError(
                f"The cluster at {client.get_address()} refused the job: {error}", next_step="cloze doctor"
            ) from error
    return True


def read_logs(client: JobSubmissionClient, submission_id: str) -> str:
    """Everything that the job has printed so far.

    Raises:
        ReferenceNotFoundError: no such job, or its log went with its machine.
    """
    job = find_job(client, submission_id)
    with answering(client.get_address()):
        try:
            return client.get_job_logs(submission_id)
        except RuntimeError as error:
            raise ReferenceNotFoundError(
                f"The log of {submission_id} ({job.status}) cannot be read: {error}", next_step="cloze jobs"
            ) from error


def follow_logs(client: JobSubmissionClient, submission_id: str, write: Callable[[str], Any]) -> Job:
    """Pass on what the job prints until it ends; returns the ended job.

    Raises:
        ReferenceNotFoundError: no such job.
        ClusterUnreachableError: the cluster went away; the job may still run.
    """
    find_job(client, submission_id)
    shown = 0
    while True:
        with answering(client.get_address()):
            shown = asyncio.run(_follow_once(client, submission_id, write, shown))
        job = find_job(client, submission_id)
        if not job.active:
            return job
        time.sleep(_POLL_S)


def stop(client: JobSubmissionClient, submission_id: str) -> tuple[Job, bool]:
    """Signal a job to stop and wait for its end; returns the job, and whether it was this that ended it.

    Raises:
        ReferenceNotFoundError: no such job.
        ClozeError: it still runs after its grace has passed.
    """
    job = find_job(client, submission_id)
    if not job.active:
        return job, False
    deadline = time.monotonic() + int(job.metadata.get(_GRACE_KEY, STOP_GRACE_S)) + 10
    with answering(client.get_address()):
        client.stop_job(submission_id)
        while (job := find_job(client, submission_id)).active:
            if time.monotonic() > deadline:
                raise ClozeError(f"{submission_id} does not stop.", next_step=f"cloze logs {submission_id}")
            time.sleep(_POLL_S)
    return job, job.status == "STOPPED"


async def _follow_once(
    client: JobSubmissionClient, submission_id: str, write: Callable[[str], Any], skip: int
) -> int:
    """Follow the log until the connection ends, without its first `skip` characters; returns its length."""
    seen = 0
    chunks = aiter(client.tail_job_logs(submission_id))
    while True:
        waiting = asyncio.ensure_future(anext(chunks, None))
        # A machine that vanishes says nothing: silence is looked into, however long the job is quiet.
        while not (await asyncio.wait({waiting}, timeout=_SILENCE_S))[0]:
            require_dashboard(client.get_address())
        try:
            chunk = waiting.result()
        except RuntimeError:
            return max(seen, skip)
        if chunk is None:
            return max(seen, skip)
        if seen + len(chunk) > skip:
            write(chunk[max(0, skip - seen) :])
        seen += len(chunk)


def _with_exit_code(client: JobSubmissionClient, job: Job) -> Job:
    """A stopped job with the exit code that its log ends with, which Ray does not keep."""
    if job.status != "STOPPED" or job.exit_code is not None:
        return job
    try:
        lines = client.get_job_logs(job.submission_id).rstrip().splitlines()
    except RuntimeError:
        # The log went with its machine.
        return job
    code = lines[-1].removeprefix(EXIT_LINE) if lines else ""
    return replace(job, exit_code=int(code)) if code.isdecimal() else job


def _job(details: Any) -> Job:
    return Job(
        submission_id=details.submission_id,
        status=str(details.status.value),
        entrypoint=details.entrypoint,
        metadata=dict(details.metadata or {}),
        message=details.message or "",
        exit_code=details.driver_exit_code,
        start_s=details.start_time / 1000 if details.start_time else None,
        end_s=details.end_time / 1000 if details.end_time else None,
    )


@contextmanager
def _staged(packages: Sequence[Path]) -> Iterator[Path]:
    """A directory that holds copies of the packages and nothing else: no data, no runs, no history."""
    with tempfile.TemporaryDirectory(prefix="cloze-code-") as name:
        for package in packages:
            if package.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
                shutil.copytree(package, Path(name) / package.name, ignore=ignored)
            else:
                shutil.copy2(package, name)
        yield Path(name)
