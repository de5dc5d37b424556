"""Stopping in good order: SIGTERM asks, a second one or the end of the grace time ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import signals
from cluster.stopping import REQUEST_NAME, StopFile

SCRIPT = """
import sys, time
from pathlib import Path
from cluster.artefacts.errors import PreemptedError
from cluster.stopping import StopFile, stop_on_sigterm
directory, grace_s, obeys = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "obeys"
try:
    with stop_on_sigterm(directory, grace_s=grace_s, next_step="type this") as request:
        worker = StopFile(directory, poll_s=0.01)
        print("ready", worker.requested(), flush=True)
        while not (worker.requested() and obeys):
            time.sleep(0.01)
        print("saved;", worker.reason, flush=True)
except PreemptedError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def start(directory: Path, *, grace_s: float, obeys: bool) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(directory), str(grace_s), "obeys" if obeys else "deaf"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready False\n"
    return process


def test_sigterm_lets_the_work_come_to_its_own_end(tmp_path: Path):
    process = start(tmp_path, grace_s=60, obeys=True)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 0
    assert printed.startswith(f"saved; SIGTERM to process {process.pid} on ")


@pytest.mark.parametrize(
    ("grace_s", "again", "told"), [(60, True, "SIGTERM came again"), (0.2, False, "0.2 s were not enough")]
)
def test_a_second_sigterm_or_the_end_of_the_grace_time_ends_with_75_and_the_next_step(
    tmp_path: Path, grace_s: float, again: bool, told: str
):
    process = start(tmp_path, grace_s=grace_s, obeys=False)
    process.send_signal(signal.SIGTERM)
    if again:
        while not (tmp_path / REQUEST_NAME).exists():
            time.sleep(0.01)
        time.sleep(signals.SAME_S)
        process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 75
    assert told in printed
    assert "Next: type this" in printed


def test_a_request_of_an_earlier_attempt_is_taken_back(tmp_path: Path):
    StopFile(tmp_path).request("yesterday")
    process = start(tmp_path, grace_s=60, obeys=True)  # Asserts that no request is seen.
    process.kill()
    process.communicate()


def test_the_file_system_is_asked_once_per_poll_and_the_first_reason_stays(tmp_path: Path):
    seldom, often = StopFile(tmp_path, poll_s=3600.0), StopFile(tmp_path, poll_s=0.0)
    assert not seldom.requested()
    for reason in ("the first", "the second"):
        StopFile(tmp_path).request(reason)
    assert (often.requested(), seldom.requested(), often.reason) == (True, False, "the first")


@pytest.mark.parametrize("contents", [b"", b"{", b"[]"])
def test_a_request_that_cannot_be_read_is_a_request(tmp_path: Path, contents: bytes):
    (tmp_path / REQUEST_NAME).write_bytes(contents)
    request = StopFile(tmp_path)
    assert (request.requested(), request.reason) == (True, "")
