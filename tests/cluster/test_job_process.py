"""A job is run again after failures that may pass, and never after a stop or a mistake."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cluster import job_process
from cluster.artefacts.errors import exit_codes
from cluster.failures import Failure, failure_of_exit_code
from cluster.job_process import run_with_retries

COUNTING = "import os, pathlib, sys; p = pathlib.Path(sys.argv[1]); n = p.stat().st_size; p.write_text('x' * (n + 1)); "


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a character for every attempt; retries come at once."""
    monkeypatch.setattr(job_process, "FIRST_PAUSE_S", 0.01)
    path = tmp_path / "attempts"
    path.touch()
    return path


def command(attempts: Path, then: str) -> list[str]:
    """A program that counts its attempts (`n` were before it) and then does something."""
    return [sys.executable, "-c", COUNTING + then, str(attempts)]


@pytest.mark.parametrize(
    ("then", "retries", "code", "count"),
    [
        pytest.param("sys.exit(31 if n < 2 else 0)", 5, 0, 3, id="passes"),
        pytest.param("sys.exit(30)", 2, 30, 3, id="retries end"),
        pytest.param("n or os.kill(os.getpid(), 9)", 1, 0, 2, id="killed once"),
        pytest.param("os.kill(os.getpid(), 9)", 0, 137, 1, id="killed"),
        *(
            # Mistakes, stops and damage are not retried.
            (f"sys.exit({code})", 3, code, 1)
            for code in (0, 1, 2, 10, 11, 20, 21, 24, 26, 36, 75, 130)
        ),
    ],
)
def test_a_failure_is_retried_while_it_may_pass(
    attempts: Path, then: str, retries: int, code: int, count: int
):
    assert run_with_retries(command(attempts, then), retries, threading.Event()) == code
    assert attempts.stat().st_size == count


def test_no_error_that_needs_an_operator_may_pass():
    passing = {code for code in exit_codes() if failure_of_exit_code(code)[0] is Failure.LOST}
    assert passing == {14, 30, 31, 32, 34}


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-35, "signal 35"), (99, "not documented")])
def test_every_exit_code_has_a_name(code: int, name: str):
    assert failure_of_exit_code(code)[1] == name


def test_stop_lets_the_command_save_and_gives_its_exit_code(tmp_path: Path):
    saving = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print('saved', flush=True), sys.exit(75)))\n"
        "print('awake', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.job_process", "--retries", "3", "--", sys.executable, "-c", saving],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "awake\n"
    # As Ray does: the process and its children.
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 75
    assert process.stdout.read() == "saved\n"


def test_stop_during_the_pause_ends_the_job(attempts: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_process, "FIRST_PAUSE_S", 600.0)
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    started = time.monotonic()
    assert run_with_retries(command(attempts, "sys.exit(30)"), 3, stop) == 30
    assert time.monotonic() - started < 300
    assert attempts.stat().st_size == 1
