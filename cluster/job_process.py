"""The process of a job: it waits for other jobs, runs a command, and runs it again after failures that may pass.

    python -m cluster.job_process --after JOB --retries 3 -- COMMAND ...

Ray's jobs have neither dependencies nor retries. A stop reaches this process and the command alike; the command saves
and ends, and this process ends with the command's exit code.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Sequence

from cluster import signals
from cluster.artefacts.errors import ClozeError, PreemptedError
from cluster.failures import failure_of_exit_code, restarts

FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
"""Seconds before a retry: each pause is twice the one before it, up to the longest."""
_POLL_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of a job; returns its exit code, or the exit code of the failure that kept it from starting."""
    parser = argparse.ArgumentParser(prog="python -m cluster.job_process", description=__doc__)
    parser.add_argument("--after", action="append", default=[], metavar="JOB")
    parser.add_argument("--retries", type=int, default=0)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    stop = threading.Event()
    # The command also gets the signal, and this process waits for it.
    with signals.answered_by(lambda number, frame: stop.set()):
        try:
            for job in given.after:
                wait_for(job, stop)
        except ClozeError as error:
            print(f"\n{error}", file=sys.stderr, flush=True)
            return error.exit_code
        return run_with_retries(given.command, given.retries, stop)


def run_with_retries(command: Sequence[str], retries: int, stop: threading.Event) -> int:
    """Run a command until it succeeds, fails for good, is stopped, or has no retries left; returns its exit code.

    Args:
        retries: how often it is run again after a failure that may pass.
        stop: set when the job is asked to stop.
    """
    limits, attempt = restarts(lost=retries), 0
    while (code := subprocess.run(list(command), check=False).returncode) and not stop.is_set():
        failure, name = failure_of_exit_code(code)
        if attempt >= limits[failure]:
            break
        pause_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        attempt += 1
        print(
            f"exit code {code} ({name}): retry {attempt} of {retries} in {pause_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        if stop.wait(pause_s):
            break
    # As a shell reports a signal.
    return code if code >= 0 else 128 - code


def wait_for(job: str, stop: threading.Event) -> None:
    """Wait until another job of this cluster has succeeded.

    Raises:
        ReferenceNotFoundError: the cluster does not know it.
        PreemptedError: this job was stopped while it waited.
        ClozeError: the other job failed or was stopped.
    """
    from cluster.connecting import named_address
    from cluster.jobs import connect, find_job

    client = connect(named_address(None) or "auto")
    found = find_job(client, job)
    if not found.status.is_terminal():
        print(f"waiting for {job}", file=sys.stderr, flush=True)
    while not found.status.is_terminal():
        if stop.wait(_POLL_S):
            raise PreemptedError(f"Stopped while it waited for {job}.", next_step="submit it again")
        found = find_job(client, job)
    if found.status != "SUCCEEDED":
        raise ClozeError(
            f"This job comes after {job}, which is {found.status.value} (exit code {found.driver_exit_code}).",
            kept="nothing was started",
            next_step=f"cloze logs {job}; when its cause is mended, submit both again",
        )


if __name__ == "__main__":
    sys.exit(main())
