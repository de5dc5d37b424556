"""An MLflow server that is down when a run is to begin, while it trains and when it ends, and whose disk is full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.campaigns.storage import filled, small_disk
from tests.chaos.injected import Injected
from tests.chaos.scene import STEPS, Row, Scene
from tests.pipeline.mlflow_server import Server

PACES_S = ("0.1", "2")
"""Seconds that every update takes longer: usually, and while a server starts."""


@contextmanager
def server_on_a_disk(directory: Path) -> Iterator[Server]:
    """An MLflow server whose database has a small disk of its own; runs that begin are tracked there."""
    with small_disk(directory) as disk, pytest.MonkeyPatch.context() as patch:
        server = Server(disk)
        patch.setenv("MLFLOW_TRACKING_URI", server.uri)
        try:
            yield server
        finally:
            server.kill()


def outages(scene: Scene) -> None:
    """The server is lost four times, and training never notices."""
    server: Server = scene.around
    pace, progress = scene.directory / "pace", scene.progress

    def sent() -> int:
        """The last update whose loss the server's database has."""
        return max((step for step, _ in server.metric_rows(scene.run.info.run_id).get("loss", [])), default=0)

    def note_waiting(row: Row) -> None:
        row.note = f"{progress.last_step - sent()} updates waited in the log; updates are slowed to 2 s"

    def until_sent() -> None:
        pace.write_text(PACES_S[1])
        begun = progress.last_step
        scene.until(lambda: sent() >= begun, "metrics in MLflow again")
        pace.write_text(PACES_S[0])

    def come_back(row: Row) -> None:
        note_waiting(row)
        pace.write_text(PACES_S[1])
        server.start()
        until_sent()

    def some_updates(first: int, last: int) -> None:
        begun = progress.last_step
        scene.until_step(begun + first, begun + last)

    server.kill()
    before = _begin_without(scene)
    pace.write_text(PACES_S[0])
    scene.start(Injected("", "", rank=-1, pace=str(pace)))
    scene.until_step(1)
    row = scene.strike("tracking-down-at-start", "MLflow down when training starts")
    scene.until_step(3, 6)
    come_back(row)
    some_updates(3, 6)
    row = scene.strike("tracking-killed", "SIGKILL of MLflow's server while training")
    server.kill()
    some_updates(8, 8)
    come_back(row)
    some_updates(3, 6)
    row = scene.strike("tracking-disk-full", "disk of MLflow's server full, then freed")
    with filled(server.directory):
        some_updates(8, 8)
        note_waiting(row)
    until_sent()
    scene.until_step(STEPS - 15, STEPS - 5)
    row = scene.strike("tracking-down-at-end", "MLflow down when training ends")
    server.kill()
    code = scene.until_ended(row)
    server.start()
    row.operator = "`cloze runs replay`, once the server is there"
    scene.check(code)
    scene.rows.insert(0, before)


def _begin_without(scene: Scene) -> Row:
    """`cloze pretrain` without a server begins nothing, and says so."""
    runs_dir = scene.run.path.parent
    before = sorted(runs_dir.iterdir())
    row = Row("tracking-down-before", "MLflow down when a run is to begin", note="nothing is started")
    command = [str(Path(sys.executable).with_name("cloze")), "pretrain", str(scene.directory / "tiny.yaml")]
    done = subprocess.run([*command, f"runs_dir={runs_dir}"], capture_output=True, text=True)
    row.ended(done.returncode, done.stderr)
    row.operator = "the same command, once the server is there"
    if sorted(runs_dir.iterdir()) != before:
        row.problems.append("it left something behind")
    if done.returncode != 32:
        row.problems.append(done.stderr[-300:])
    return row
