"""Jobs on a Ray cluster, by Ray's own client: submit once, list, follow, stop.

A job is a command with its environment and metadata; which commands there are is the caller's business.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.errors import ClozeError, ReferenceNotFoundError
from cluster.connecting import (
    access_refused,
    dashboard_at,
    require_dashboard,
    unreachable,
    without_address_variables,
)
from cluster.local_cluster import own_cluster_at
from cluster.signals import EXIT_LINE
from cluster.start_directory import START_DIRECTORY_VARIABLE

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

DRIVER_MEMORY_BYTES = 512 * 1024**2
STOP_GRACE_S = 15
"""Default time in seconds between interrupting and killing a job."""
_GRACE_KEY = "stop_grace_s"
"""Metadata key of a job's grace period."""
_POLL_S = 0.5
_SILENCE_S = 20.0
"""Seconds without a line of a followed log after which the dashboard is checked."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A command to run once on the cluster, and the resources it needs there."""

    arguments: tuple[str, ...]
    """The command and its arguments; quoted for the shell here."""
    metadata: Mapping[str, str]
    environment: Mapping[str, str]
    packages: tuple[Path, ...] = ()
    """Directories and files that are shipped with the job, into its working directory."""
    start_directory: Path | None = None
    """Working directory of the job's workers; see `start_directory.py`. Must be shared by all machines, and `cluster`
    be among the packages. None leaves the workers in the directory of the packages."""
    memory_bytes: int = DRIVER_MEMORY_BYTES
    """Reserved for the command itself. A resource that is reserved lets Ray run it off the head node. It is
    memory and no share of a CPU, because that would leave too few CPUs for workers that take all of them."""
    num_gpus: float = 0
    """GPUs of the command itself, besides those of the workers it starts."""
    stop_signal: str = "SIGINT"
    """SIGINT lets any command end its workers and its tracking; SIGTERM is for commands that answer it by saving."""
    stop_grace_s: int = STOP_GRACE_S
    """Seconds between the signal and the kill."""


def connect(address: str) -> JobSubmissionClient:
    """A client for the Job API at `http://HOST:8265`, `HOST:6379`, `ray://HOST:10001` or `auto`.

    Raises:
        ClusterUnreachableError: nothing answers, within seconds.
    """
    url = dashboard_at(address)
    from ray.job_submission import JobSubmissionClient

    for name in (
        "dashboard.modules.dashboard_sdk",
        "dashboard.modules.job.sdk",
        "_private.runtime_env.packaging",
    ):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    own = own_cluster_at(url)
    with without_address_variables(), _answering(url):
        return JobSubmissionClient(url, headers=own.headers if own else None)


def list_jobs(client: JobSubmissionClient) -> list[JobDetails]:
    """All submitted jobs that the cluster remembers, newest first."""
    with _answering(client.get_address()):
        jobs = [_with_exit_code(client, job) for job in client.list_jobs() if job.submission_id]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def find_job(client: JobSubmissionClient, submission_id: str) -> JobDetails:
    """The job with this id.

    Raises:
        ReferenceNotFoundError: there is none; names the nearest.
    """
    with _answering(client.get_address()):
        try:
            return _with_exit_code(client, client.get_job_info(submission_id))
        except RuntimeError:
            known = [str(job.submission_id) for job in client.list_jobs() if job.submission_id]
            if submission_id in known:
                raise
    near = difflib.get_close_matches(submission_id, known, n=3, cutoff=0.4)
    hint = f" The nearest: {', '.join(near)}." if near else ""
    raise ReferenceNotFoundError(
        f"The cluster at {client.get_address()} has no job {submission_id}.{hint}", next_step="cloze jobs"
    )


def attempts(client: JobSubmissionClient, base_id: str) -> list[JobDetails]:
    """The jobs `base_id`, `base_id-2`, `base_id-3` ..., in this order."""
    name = re.compile(rf"{re.escape(base_id)}(-\d+)?")
    matching = [job for job in list_jobs(client) if name.fullmatch(str(job.submission_id))]
    return sorted(matching, key=lambda job: _attempt(base_id, job))


def next_id(base_id: str, earlier: Sequence[JobDetails]) -> str:
    """The submission id of the attempt that follows the earlier ones."""
    return f"{base_id}-{_attempt(base_id, earlier[-1]) + 1}" if earlier else base_id


def submit(client: JobSubmissionClient, submission_id: str, request: JobRequest) -> bool:
    """Submit a command; False when a job with this id was submitted a moment before."""
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
    with _answering(client.get_address()), _staged(request.packages) as working_dir:
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
    """The whole log of the job so far.

    Raises:
        ReferenceNotFoundError: no such job, or its log was lost with its machine.
    """
    job = find_job(client, submission_id)
    with _answering(client.get_address()):
        try:
            return client.get_job_logs(submission_id)
        except RuntimeError as error:
            raise ReferenceNotFoundError(
                f"The log of {submission_id} ({job.status.value}) cannot be read: {error}",
                next_step="cloze jobs",
            ) from error


def follow_logs(client: JobSubmissionClient, submission_id: str, write: Callable[[str], Any]) -> JobDetails:
    """Write the log as it grows until the job ends; returns the ended job.

    Raises:
        ReferenceNotFoundError: no such job.
        ClusterUnreachableError: the cluster went away; the job may still run.
    """
    find_job(client, submission_id)
    shown = 0
    while True:
        with _answering(client.get_address()):
            shown = asyncio.run(_follow_once(client, submission_id, write, shown))
        job = find_job(client, submission_id)
        if job.status.is_terminal():
            return job
        time.sleep(_POLL_S)


def stop(client: JobSubmissionClient, submission_id: str) -> tuple[JobDetails, bool]:
    """Signal a job to stop and wait for its end; returns the job, and whether this call ended it.

    Raises:
        ReferenceNotFoundError: no such job.
        ClozeError: it still runs after its grace period.
    """
    job = find_job(client, submission_id)
    if job.status.is_terminal():
        return job, False
    deadline = time.monotonic() + int((job.metadata or {}).get(_GRACE_KEY, STOP_GRACE_S)) + 10
    with _answering(client.get_address()):
        client.stop_job(submission_id)
    while not (job := find_job(client, submission_id)).status.is_terminal():
        if time.monotonic() > deadline:
            raise ClozeError(f"{submission_id} does not stop.", next_step=f"cloze logs {submission_id}")
        time.sleep(_POLL_S)
    return job, job.status == "STOPPED"


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Raise ClusterUnreachableError if the connection to the cluster breaks inside the block."""
    from aiohttp import ClientError
    from ray.exceptions import AuthenticationError
    from requests.exceptions import RequestException

    try:
        yield
    except AuthenticationError as error:
        raise access_refused(address, error) from error
    except (RequestException, ClientError, ConnectionError) as error:
        raise unreachable(address, error) from error


async def _follow_once(
    client: JobSubmissionClient, submission_id: str, write: Callable[[str], Any], skip: int
) -> int:
    """Follow the log until the connection ends, without its first `skip` characters; returns its length."""
    seen = 0
    chunks = aiter(client.tail_job_logs(submission_id))
    while True:
        waiting = asyncio.ensure_future(anext(chunks, None))
        # A machine that vanishes closes no connection, so a silent log needs a look at the dashboard.
        while not (await asyncio.wait({waiting}, timeout=_SILENCE_S))[0]:
            require_dashboard(client.get_address())
        try:
            chunk = waiting.result()
        except RuntimeError:
            chunk = None
        if chunk is None:
            return max(seen, skip)
        if seen + len(chunk) > skip:
            write(chunk[max(0, skip - seen) :])
        seen += len(chunk)


def _with_exit_code(client: JobSubmissionClient, job: JobDetails) -> JobDetails:
    """Set the exit code of a stopped job. Ray does not keep it, but the job's log ends with it."""
    if job.status == "STOPPED" and job.driver_exit_code is None:
        # Otherwise the log was lost with its machine.
        with suppress(RuntimeError):
            log = client.get_job_logs(str(job.submission_id))
            last_line = re.search(rf"^{EXIT_LINE}(\d+)\s*\Z", log, re.M)
            job.driver_exit_code = int(last_line[1]) if last_line else None
    return job


def _attempt(base_id: str, job: JobDetails) -> int:
    """Number of the attempt, counted from 1."""
    return int(str(job.submission_id).removeprefix(base_id).removeprefix("-") or 1)


@contextmanager
def _staged(packages: Sequence[Path]) -> Iterator[Path]:
    """A temporary directory with copies of the packages and nothing else: no data, no runs, no history."""
    with tempfile.TemporaryDirectory(prefix="cloze-code-") as name:
        for package in packages:
            if package.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
                shutil.copytree(package, Path(name) / package.name, ignore=ignored)
            else:
                shutil.copy2(package, name)
        yield Path(name)
