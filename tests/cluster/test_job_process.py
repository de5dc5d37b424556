"""A job is run again after failures that may pass, and never after a stop or a mistake."""

from __future__ import annotations

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

COUNTING = (
    "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = p.stat().st_size; p.write_text('x' * (n + 1)); "
)


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


def test_failure_that_may_pass_is_retried_until_it_passes(attempts: Path):
    assert run_with_retries(command(attempts, "sys.exit(31 if n < 2 else 0)"), 5, threading.Event()) == 0
    assert attempts.stat().st_size == 3


def test_retries_end(attempts: Path):
    assert run_with_retries(command(attempts, "sys.exit(30)"), 2, threading.Event()) == 30
    assert attempts.stat().st_size == 3


@pytest.mark.parametrize("code", [0, 1, 2, 10, 11, 20, 21, 24, 26, 36, 75, 130])
def test_mistakes_stops_and_damage_are_not_retried(attempts: Path, code: int):
    assert run_with_retries(command(attempts, f"sys.exit({code})"), 3, threading.Event()) == code
    assert attempts.stat().st_size == 1


def test_killed_command_is_retried(attempts: Path):
    killed = "import os, signal; n or os.kill(os.getpid(), signal.SIGKILL)"
    assert run_with_retries(command(attempts, killed), 1, threading.Event()) == 0
    assert (
        run_with_retries(command(attempts, "import os; os.kill(os.getpid(), 9)"), 0, threading.Event()) == 137
    )


def test_no_error_that_needs_an_operator_may_pass():
    assert {code for code in exit_codes() if failure_of_exit_code(code)[0] is Failure.LOST} == {
        14,
        30,
        31,
        32,
        34,
    }


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
