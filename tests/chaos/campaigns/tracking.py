"""An MLflow server that is down when a run is to begin, while it trains and when it ends, and whose disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.campaigns.storage import fill, small_disk
from tests.chaos.injected import Injected
from tests.chaos.scene import STEPS, Row, Scene
from tests.pipeline.mlflow_server import Server

PACES_S = ("0.1", "2")
"""Seconds that every update takes longer: usually, and while a server starts."""


@contextmanager
def server_on_a_disk(directory: Path) -> Iterator[Server]:
    """An MLflow server whose database has a small disk of its own; runs that begin are tracked there."""
    variable = "MLFLOW_TRACKING_URI"
    with small_disk(directory) as disk:
        server = Server(disk)
        before = os.environ.get(variable)
        os.environ[variable] = server.uri
        try:
            yield server
        finally:
            os.environ.pop(variable)
            if before is not None:
                os.environ[variable] = before
            server.kill()


def outages(scene: Scene) -> None:
    """The server is lost four times, and training never notices."""
    server: Server = scene.around
    server.kill()
    before = _begin_without(scene)
    _pace(scene).write_text(PACES_S[0])
    scene.start(Injected("", "", rank=-1, pace=str(_pace(scene))))
    scene.until_step(1)
    row = scene.strike("tracking-down-at-start", "MLflow down when training starts")
    scene.until_step(scene.a_step(3, 6))
    _come_back(scene, server, row)
    scene.until_step(scene.progress.last_step + scene.a_step(3, 6))
    row = scene.strike("tracking-killed", "SIGKILL of MLflow's server while training")
    server.kill()
    scene.until_step(scene.progress.last_step + 8)
    _come_back(scene, server, row)
    scene.until_step(scene.progress.last_step + scene.a_step(3, 6))
    row = scene.strike("tracking-disk-full", "disk of MLflow's server full, then freed")
    filler = fill(server.directory)
    scene.until_step(scene.progress.last_step + 8)
    row.note = _waiting(scene, server)
    filler.unlink()
    _until_sent(scene, server)
    scene.until_step(STEPS - scene.a_step(5, 15))
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


def _come_back(scene: Scene, server: Server, row: Row) -> None:
    row.note = _waiting(scene, server)
    _pace(scene).write_text(PACES_S[1])
    server.start()
    _until_sent(scene, server)


def _until_sent(scene: Scene, server: Server) -> None:
    _pace(scene).write_text(PACES_S[1])
    begun = scene.progress.last_step
    scene.until(lambda: _sent(scene, server) >= begun, "metrics in MLflow again")
    _pace(scene).write_text(PACES_S[0])


def _pace(scene: Scene) -> Path:
    return scene.directory / "pace"


def _sent(scene: Scene, server: Server) -> int:
    """The last update whose loss the server's database has."""
    return max((step for step, _ in server.metric_rows(scene.run.info.run_id).get("loss", [])), default=0)


def _waiting(scene: Scene, server: Server) -> str:
    return f"{scene.progress.last_step - _sent(scene, server)} updates waited in the log; updates are slowed to 2 s"
