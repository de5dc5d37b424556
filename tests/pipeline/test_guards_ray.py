"""A real group of two workers under Ray: one is stopped, named and replaced; then all processes are asked to stop."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from cluster.artefacts.storage import is_committed
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import Beat, process_of, read_heartbeats, state_of
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import Driver, make_run

SETTINGS = (
    "steps=1000000",
    "cluster.workers=2",
    "checkpoint.every_steps=20",
    "evaluation.every_steps=1000000",
)


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return make_run(tmp_path, store, "guarded", *SETTINGS, "guards.stall_timeout_s=15", "guards.grace_s=120")


def rank_one(run: RunDirectory, other_than: int = 0) -> Beat | None:
    """Rank 1, once it has made some updates, in a process other than that."""
    for beat in read_heartbeats(run):
        if beat.rank == 1 and beat.num_steps > 30 and beat.pid != other_than and process_of(beat):
            return beat
    return None


def test_a_stopped_rank_is_named_and_replaced_and_a_run_saves_when_all_its_processes_are_asked_to_stop(
    run: RunDirectory, tmp_path: Path
):
    driver = Driver(run, tmp_path / "driver.log")
    try:
        stopped = driver.wait_for(lambda: rank_one(run))
        os.kill(stopped.pid, signal.SIGSTOP)
        again = driver.wait_for(lambda: rank_one(run, other_than=stopped.pid))
        assert process_of(stopped) is None
        stalls = run.events(Event.STALLED)
        assert [(stall["rank"], stall["pid"], stall["state"]) for stall in stalls] == [
            (1, stopped.pid, "stopped")
        ]
        (died,) = [event["workers"][0] for event in run.events(Event.WORKERS_LOST)]
        # The stopped one itself, or one that waited for it and ended itself.
        assert died["host"] == stopped.host
        assert (died["rank"] == 1) == (died["pid"] == stopped.pid)
        assert "killed" in died["why"] or "stood still" in died["why"]
        starts = run.events(Event.STARTED)
        assert len(starts) == 2
        assert starts[1]["step"] % 20 == 0
        assert starts[1]["step"] > 0
        # As systemd does. Ray's processes get it before the driver.
        for process in (*psutil.Process(driver.process.pid).children(recursive=True), driver.process):
            process.send_signal(signal.SIGTERM)
        assert driver.process.wait(timeout=PATIENCE_S) == 75, driver.output
    finally:
        driver.process.kill()
    assert process_of(again) is None
    newest = max(list_checkpoints(run.checkpoints), key=step_of)
    assert is_committed(newest)
    assert f"stopped at step {step_of(newest)}" in driver.output
    assert "Traceback" not in driver.log.read_text()
    assert state_of(run).name == "preempted"
