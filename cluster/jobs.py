"""Jobs on a Ray cluster, by Ray's own client: submit once, list, follow, stop.

A job is a command with its environment and metadata; which commands there are is the caller's business.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.artefacts.errors import ClozeError, ReferenceNotFoundError
from cluster.connecting import (
    TIMEOUT_S,
    access_refused,
    dashboard_at,
    require_dashboard,
    unreachable,
    within,
    without_address_variables,
)
from cluster.local_cluster import own_cluster_at
from cluster.ray_internals import node_loads
from cluster.start_directory import START_DIRECTORY_VARIABLE

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

    from cluster.node_load import NodeLoad

Answer = TypeVar("Answer")

STOP_SIGNAL = "SIGTERM"
_POLL_S = 0.5
ANSWER_S = 60.0
_UPLOAD_S = 600.0
"""Longest waits for the dashboard, because Ray's client has no deadlines; a submission uploads the code."""
_BUSY = "please try again later"
"""What the dashboard answers while no node can take a job: the agents of a new or busy cluster start late."""
_ATTEMPTS = 6
"""Submissions to a busy cluster. The dashboard waits for an agent before each answer."""
_SILENCE_S = 20.0
"""The dashboard is checked after so many seconds without a line of a followed log."""


def connect(address: str) -> JobSubmissionClient:
    """A client for the Job API at `http://HOST:8265`, `HOST:6379`, `ray://HOST:10001` or `auto`.

    Raises:
        ClusterUnreachableError: nothing answers, within seconds.
    """
    url = dashboard_at(address)
    from ray.job_submission import JobSubmissionClient

    # Silence warnings about directories that are excluded on purpose.
    logging.getLogger("ray").setLevel(logging.ERROR)
    own = own_cluster_at(url)
    with without_address_variables(), answering(url):
        return within(ANSWER_S, lambda: JobSubmissionClient(url, headers=own.headers if own else None))


def list_jobs(client: JobSubmissionClient) -> list[JobDetails]:
    """All submitted jobs that the cluster remembers, newest first."""
    jobs = [job for job in _ask(client, client.list_jobs) if job.submission_id]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def find_job(client: JobSubmissionClient, submission_id: str) -> JobDetails:
    """The job with this id.

    Raises:
        ReferenceNotFoundError: there is none; names the nearest.
    """
    try:
        return _ask(client, lambda: client.get_job_info(submission_id))
    except RuntimeError:
        known = [str(job.submission_id) for job in list_jobs(client)]
        if submission_id in known:
            raise
    near = difflib.get_close_matches(submission_id, known, n=3, cutoff=0.4)
    hint = f" The nearest: {', '.join(near)}." if near else ""
    raise ReferenceNotFoundError(
        f"The cluster at {client.get_address()} has no job {submission_id}.{hint}", next_step="cloze jobs"
    )


def submit(
    client: JobSubmissionClient,
    submission_id: str,
    command: Sequence[str],
    *,
    root: Path,
    code: Sequence[str],
    metadata: Mapping[str, str],
    environment: Mapping[str, str],
    stop_grace_s: int,
    memory_bytes: int = 512 * 1024**2,
    num_gpus: float = 0,
) -> bool:
    """Submit a command, to start in this process's working directory; False when a job with this id was submitted a
    moment before.

    Args:
        command: the program and its arguments; quoted for the shell here.
        root: holds the code; nothing else in it is shipped.
        code: names of packages and files in `root`; `cluster` must be one of them.
        stop_grace_s: seconds between STOP_SIGNAL and the kill.
        memory_bytes: reserved for the command itself. A resource that is reserved lets Ray run it off the head node. It
            is memory and no share of a CPU, because that would leave too few CPUs for workers that take all of them.
        num_gpus: GPUs of the command itself, besides the GPUs of the workers it starts.
    """
    submission = partial(
        client.submit_job,
        entrypoint=shlex.join(command),
        submission_id=submission_id,
        runtime_env={
            "working_dir": str(root),
            # As in a .gitignore: all but the code, then hidden files in it; the root itself stays.
            "excludes": ["/*", *(f"!/{name}" for name in code), "__pycache__", "*.pyc", ".*", "!."],
            "worker_process_setup_hook": "cluster.start_directory.enter_start_directory",
            "env_vars": {
                **environment,
                START_DIRECTORY_VARIABLE: os.getcwd(),
                # The shipped code runs, also where the working directory holds packages of the same names.
                "PYTHONSAFEPATH": "1",
                "RAY_JOB_STOP_SIGNAL": STOP_SIGNAL,
                "RAY_JOB_STOP_WAIT_TIME_S": str(stop_grace_s),
            },
        },
        metadata=dict(metadata),
        entrypoint_memory=memory_bytes,
        entrypoint_num_gpus=num_gpus or None,
    )
    import tenacity

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_message(match=f".*{_BUSY}"),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_fixed(_POLL_S),
        reraise=True,
    )
    try:
        _ask(client, partial(retrying, submission), _UPLOAD_S)
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
    try:
        return _ask(client, lambda: client.get_job_logs(submission_id))
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
        with answering(client.get_address()):
            shown = asyncio.run(_follow_once(client, submission_id, write, shown))
        job = find_job(client, submission_id)
        if job.status.is_terminal():
            return job
        time.sleep(_POLL_S)


def stop(client: JobSubmissionClient, submission_id: str) -> tuple[JobDetails, bool]:
    """Signal a job to stop and wait for its end; returns the job, and whether this call ended it.

    Ray kills a job that does not end within its grace period.

    Raises:
        ReferenceNotFoundError: no such job.
    """
    job = find_job(client, submission_id)
    if job.status.is_terminal():
        return job, False
    ask_to_stop(client, submission_id)
    while not job.status.is_terminal():
        time.sleep(_POLL_S)
        job = find_job(client, submission_id)
    return job, job.status == "STOPPED"


def ask_to_stop(client: JobSubmissionClient, submission_id: str) -> None:
    """Signal a job to stop, without waiting for its end."""
    _ask(client, lambda: client.stop_job(submission_id))


def read_nodes(client: JobSubmissionClient) -> list[NodeLoad]:
    """The nodes of a cluster by name, then the nodes that died during its life.

    Raises:
        ClusterUnreachableError: the dashboard does not answer.
    """
    with answering(client.get_address()):
        found = node_loads(client, TIMEOUT_S)
    return sorted(found, key=lambda node: (not node.is_alive, node.name))


@contextmanager
def answering(address: str) -> Iterator[None]:
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


def _ask(client: JobSubmissionClient, call: Callable[[], Answer], timeout_s: float | None = None) -> Answer:
    """What a call of the client returns; raises ClusterUnreachableError if it takes longer than ANSWER_S, or than
    `timeout_s`, or the connection breaks."""
    with answering(client.get_address()):
        return within(timeout_s or ANSWER_S, call)


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
