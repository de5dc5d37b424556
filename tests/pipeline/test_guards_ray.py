"""A real group of two workers under Ray: one is stopped, named and replaced; then all processes are asked to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cluster.artefacts.storage import is_committed
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.run.directory import RunDirectory
from pipeline.run.state import Beat, process_of, read_heartbeats, state_of
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import make_run

SETTINGS = (
    "steps=1000000",
    "cluster.workers=2",
    "checkpoint.every_steps=20",
    "evaluation.every_steps=1000000",
)


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return make_run(tmp_path, store, "guarded", *SETTINGS, "guards.stall_timeout_s=15", "guards.grace_s=120")


def start_driver(run: RunDirectory, log: Path) -> subprocess.Popen[bytes]:
    removed = ("RAY_", "CLOZE_", "MLFLOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    command = [str(Path(sys.executable).with_name("cloze")), "resume", str(run.path)]
    with log.open("wb") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)


def wait_for_steps(
    run: RunDirectory, driver: subprocess.Popen[bytes], log: Path, other_than: int = 0
) -> Beat:
    """Rank 1, once it has made some updates, in a process other than that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for beat in read_heartbeats(run):
            if beat.rank == 1 and beat.num_steps > 30 and beat.pid != other_than and process_of(beat):
                return beat
        assert driver.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def test_a_stopped_rank_is_named_and_replaced_and_a_run_saves_when_all_its_processes_are_asked_to_stop(
    run: RunDirectory, tmp_path: Path
):
    log = tmp_path / "driver.log"
    driver = start_driver(run, log)
    try:
        stopped = wait_for_steps(run, driver, log)
        os.kill(stopped.pid, signal.SIGSTOP)
        again = wait_for_steps(run, driver, log, other_than=stopped.pid)
        assert process_of(stopped) is None
        stalls = [event for event in run.events() if event["event"] == "stalled"]
        assert [(stall["rank"], stall["pid"], stall["state"]) for stall in stalls] == [
            (1, stopped.pid, "stopped")
        ]
        (died,) = [event["workers"][0] for event in run.events() if event["event"] == "workers-lost"]
        # The stopped one itself, or one that waited for it and ended itself.
        assert died["host"] == stopped.host
        assert (died["rank"] == 1) == (died["pid"] == stopped.pid)
        assert "killed" in died["why"] or "stood still" in died["why"]
        starts = [event for event in run.events() if event["event"] == "started"]
        assert len(starts) == 2
        assert starts[1]["step"] % 20 == 0
        assert starts[1]["step"] > 0
        # As systemd does. Ray's processes get it before the driver.
        for process in (*psutil.Process(driver.pid).children(recursive=True), driver):
            process.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=PATIENCE_S) == 75, log.read_text()[-3000:]
    finally:
        driver.kill()
    assert process_of(again) is None
    newest = max(list_checkpoints(run.checkpoints), key=step_of)
    assert is_committed(newest)
    assert f"stopped at step {step_of(newest)}, as asked" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert state_of(run).name == "preempted"
