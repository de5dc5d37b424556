"""Signs of life: read by others at any moment, and the end of a process that gives none."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import ENDED, Beat, process_of, read_heartbeats
from tests.pipeline.ranks import make_run

SCRIPT = """
import sys, time
from pathlib import Path
from pipeline.run.directory import RunDirectory
from pipeline.run.state import Heartbeat
heartbeat = Heartbeat(RunDirectory(Path(sys.argv[1])), int(sys.argv[2]), timeout_s=float(sys.argv[3]))
{body}
"""
READY = "print(flush=True); input()"
"""The end of a body that lives on until it is told to go on."""


def start(directory: Path, timeout_s: float, body: str, rank: int = 3) -> subprocess.Popen[str]:
    """A process with a heartbeat, which `after_beats` waits for."""
    command = [sys.executable, "-c", SCRIPT.format(body=body), str(directory), str(rank), str(timeout_s)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def after_beats(process: subprocess.Popen[str]) -> list[Beat]:
    """Wait for a line of the process, and return the beats of its directory."""
    assert process.stdout is not None
    process.stdout.readline()
    arguments: Any = process.args
    return read_heartbeats(RunDirectory(Path(arguments[-3])))


def test_a_beat_says_where_the_rank_stands_and_which_process_it_is(tmp_path: Path):
    process = start(tmp_path, 900.0, f"heartbeat.beat(41, 'update'); {READY}")
    (beat,) = after_beats(process)
    assert (beat.rank, beat.pid, beat.step, beat.part) == (3, process.pid, 41, "update")
    assert getattr(process_of(beat), "pid", None) == process.pid
    # Another process with the same number, after this one ended, was born at another time.
    assert process_of(beat.model_copy(update={"pid": os.getpid()})) is None
    process.communicate("\n")
    assert process_of(beat) is None


def test_the_first_step_has_ten_times_as_long(tmp_path: Path):
    body = (
        f"heartbeat.beat(5, 'data'); heartbeat.beat(4, 'data'); {READY}; heartbeat.beat(6, 'data'); {READY}"
    )
    process = start(tmp_path, 100.0, body)
    assert process.stdin is not None
    assert [beat.timeout_s for beat in after_beats(process)] == [1000.0]
    process.stdin.write("\n")
    process.stdin.flush()
    assert [beat.timeout_s for beat in after_beats(process)] == [100.0]
    process.communicate("\n")


@pytest.mark.parametrize("standing_still", ["time.sleep(600)", "sum(range(10**14))"])
def test_a_process_that_stands_still_writes_its_stacks_and_ends(tmp_path: Path, standing_still: str):
    # The second one never lets go of the interpreter's lock.
    body = f"def stuck_here():\n    {standing_still}\nheartbeat.beat(1, 'a'); heartbeat.beat(2, 'b'); stuck_here()"
    process = start(tmp_path, 0.3, body)
    assert process.wait() == 1
    (stacks,) = RunDirectory(tmp_path).stacks.iterdir()
    assert stacks.name.startswith("rank-00003-")
    assert "stuck_here" in stacks.read_text()


def test_rank_zero_without_a_driver_names_who_stood_still_and_ends_with_the_exit_code_of_stalls(
    tmp_path: Path, store: Path
):
    run = make_run(tmp_path, store, "stalled", "guards.stall_timeout_s=3")
    # Without its alarm, which might come first on a busy machine.
    body = (
        "import faulthandler\n"
        "from pipeline.pretrain.stall_watch import watching\n"
        "run = RunDirectory(Path(sys.argv[1]))\n"
        "first = Heartbeat(run, 0, timeout_s=3)\n"
        "def stuck_here():\n    time.sleep(600)\n"
        "for step in (6, 7, 8):\n    first.beat(step, 'update')\n"
        "faulthandler.cancel_dump_traceback_later()\n"
        "with watching(run, without_driver=True):\n    stuck_here()"
    )
    command = [sys.executable, "-c", SCRIPT.format(body=body), str(run.path), "3", "900"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 34, done.stderr
    assert "rank 0 (process" in done.stderr
    (failed,) = run.events(Event.FAILED)
    assert failed["error"] == "StalledError"
    (stacks,) = run.stacks.glob("rank-00000-*")
    assert "stuck_here" in stacks.read_text()


def test_a_process_that_beats_lives_on_and_leaves_no_stacks(tmp_path: Path):
    beats = "for step in range(40):\n    heartbeat.beat(step, 'data'); time.sleep(0.1)"
    process = start(tmp_path, 3.0, f"{beats}\nheartbeat.close(); time.sleep(3.5)")
    assert process.wait() == 0
    assert list(RunDirectory(tmp_path).stacks.iterdir()) == []
    assert [(beat.step, beat.part) for beat in read_heartbeats(RunDirectory(tmp_path))] == [(39, ENDED)]
