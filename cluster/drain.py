"""The end of a pod, before its processes get SIGTERM: `python -m cluster.drain head|worker SECONDS`.

Ray ends everything on a node at once when it is asked to end. So a head first lets verbs save and end: its own by
SIGTERM, and at the same time all jobs without a verb here, which run on other nodes. A worker stays until the head is
gone, because saving needs its ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePath

import psutil

from cluster.artefacts.errors import ClozeError
from cluster.connecting import host_and_port, tcp_answers
from cluster.ray_internals import JOB_VARIABLE

POLL_S = 1.0
_SILENCE_S = 15.0
"""Longest wait for a dashboard that does not answer."""
_DASHBOARD = "http://127.0.0.1:8265"
_HEAD_VARIABLE = "RAY_ADDRESS"
"""KubeRay sets it in all containers."""


def end_verbs(processes: Iterable[psutil.Process], timeout_s: float) -> list[int]:
    """Send SIGTERM to the verbs of cloze among processes and wait for their ends.

    Returns:
        Process ids of verbs that still ran after `timeout_s` seconds.
    """
    verbs = [process for process in processes if _is_verb(process)]
    for process in verbs:
        with suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(verbs, timeout=timeout_s)
    return [process.pid for process in left]


def stop_jobs(address: str, timeout_s: float, *, ended_here: Collection[str] = ()) -> list[str]:
    """Stop all jobs of the cluster whose dashboard is at `address`, and wait for their ends.

    Args:
        ended_here: ids of jobs that are waited for only: they are asked by other means.

    Returns:
        Ids of jobs that still ran after `timeout_s` seconds.

    Raises:
        ClusterUnreachableError: no dashboard answers.
    """
    from cluster.jobs import ask_to_stop, connect, list_jobs

    answered_s = time.monotonic()
    deadline = answered_s + timeout_s
    asked = set(ended_here)
    while True:
        try:
            client = connect(address)
            left = [str(job.submission_id) for job in list_jobs(client) if not job.status.is_terminal()]
            for job in left:
                if job not in asked:
                    ask_to_stop(client, job)
                    asked.add(job)
        except ClozeError:
            # A busy head may answer a moment later.
            if time.monotonic() >= min(deadline, answered_s + _SILENCE_S):
                raise
        else:
            answered_s = time.monotonic()
            if not left or time.monotonic() >= deadline:
                return left
        time.sleep(POLL_S)


def jobs_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Ids of the jobs that have a verb among processes."""
    found = set()
    for process in processes:
        with suppress(psutil.Error, KeyError, ValueError, TypeError):
            if _is_verb(process):
                found.add(json.loads(process.environ()[JOB_VARIABLE])["metadata"]["job_submission_id"])
    return found


def outlive_head(address: str, timeout_s: float) -> bool:
    """Wait until the head at `HOST:PORT` is gone, `timeout_s` seconds at most; returns whether it is gone."""
    host, port = host_and_port(address, 6379)
    deadline = time.monotonic() + timeout_s
    while tcp_answers(host, port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _is_verb(process: psutil.Process) -> bool:
    """Whether a process is `cloze ...` or `python -m pipeline.cli ...`, and not the shell that started it."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    program = [PurePath(word).name for word in words[:2]]
    return process.pid != os.getpid() and ("cloze" in program or words[1:3] == ["-m", "pipeline.cli"])


def _drain_head(timeout_s: float) -> bool:
    """Whether all verbs and jobs ended in time."""
    # All processes of the container. A verb that gets SIGTERM ends with 75, so that a RayJob tries again; one that also
    # got Ray's signal would take it for a second one, and not save.
    processes = list(psutil.process_iter())
    ended_here = jobs_of(processes)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop_jobs, _DASHBOARD, timeout_s, ended_here=ended_here)
        left = end_verbs(processes, timeout_s)
        try:
            return not stopping.result() and not left
        except ClozeError as error:
            print(error, file=sys.stderr)
            return False


def main() -> int:
    """Drain this pod; exit code 1 when the time was not enough."""
    part, timeout_s = sys.argv[1], float(sys.argv[2])
    if part == "head":
        return int(not _drain_head(timeout_s))
    return int(not outlive_head(os.environ.get(_HEAD_VARIABLE, ""), timeout_s))


if __name__ == "__main__":
    sys.exit(main())
