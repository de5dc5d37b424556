"""A run as its processes leave it on disk, written by what they write it with."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.lifecycle import record_launch
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from tests.pipeline.ranks import make_run

HOST = platform.node()


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    """The run that is watched."""
    return watched_run(tmp_path, store)


def start(run: RunDirectory, step: int) -> None:
    """An attempt of this process."""
    record_launch(run)
    run.record_event(Event.STARTED, step=step, world_size=1, workers=[{"rank": 0, "host": HOST, "pid": 1}])


def watched_run(directory: Path, store: Path, name: str = "watched") -> RunDirectory:
    """A run of 12 steps that was restarted once, and has made 7."""
    run = make_run(directory, store, name)
    start(run, 0)
    run.record_event(Event.WORKERS_LOST, workers=[], message="its process was killed or crashed")
    start(run, 4)
    log = RunLog(run)
    speeds = {"tokens_per_s": 5000.0, "step_s": 0.1, "data_wait_share": 0.25, "host_memory_bytes": 1e9}
    for step in range(1, 8):
        log.write(LogKind.STEP, step, {"loss": 9.0 - step, "lr": 1e-3, "grad_norm": 1.0, **speeds})
        if step == 4:
            log.write(LogKind.HELD_OUT, step, {"loss": 5.5, "mlm/loss": 5.5})
            log.write(LogKind.CHECKPOINT, step, {"directory": "x", "kept": [4]})
            log.write(LogKind.SAVING, step, {"checkpoint_s": 0.5})
            machine = {"cpu_utilization_percentage": 50.0, "disk_available_megabytes": 2000.0}
            gpu = {"gpu_1_utilization_percentage": 90.0, "gpu_1_memory_usage_megabytes": 70.0}
            figures = {f"{HOST}/{name}": value for name, value in (machine | gpu).items()}
            log.write(LogKind.SYSTEM, step, figures)
    log.close()
    return run


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
