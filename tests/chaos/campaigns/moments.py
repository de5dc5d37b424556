"""SIGKILL of a rank in the middle of a file system's call: while it starts, saves, caches an index, deletes, logs."""

from __future__ import annotations

import signal
import time

import psutil

from tests.chaos.injected import Injected
from tests.chaos.scene import AGAIN, STEPS, Scene

MOMENTS = (
    ("killed-in-index", "SIGKILL while the index of an epoch is written", "open", r"index-cache/", 3),
    ("killed-in-start-up", "SIGKILL of a rank while it opens its data", "open", r"tokens/", 3),
    (
        "killed-before-manifest",
        "SIGKILL while a checkpoint's manifest is written",
        "os.rename",
        r"step-\d+\S*/manifest\.json",
        3,
    ),
    (
        "killed-before-commit",
        "SIGKILL between a checkpoint's manifest and its rename",
        "os.rename",
        r"checkpoints/step-\d+ ",
        3,
    ),
    ("killed-in-retention", "SIGKILL while an old checkpoint is deleted", "os.rmdir", "", 2),
)
"""Name, fault, audit event, path, and the last of the calls at which it may happen."""


def moments(scene: Scene) -> None:
    """One run that is killed at every one of these moments, and started again each time."""
    for name, fault, event, path, last in MOMENTS:
        struck = scene.directory / name
        call = scene.random.randint(1, last)
        group = scene.start(Injected(event, path, first=call, rank=0, struck=str(struck)))
        scene.until(lambda struck=struck, group=group: struck.exists() or group.poll() is not None, name)
        row = scene.strike(name, fault)
        row.note = f"call {call}"
        if not struck.exists():
            row.problems.append("the run ended before the moment came")
            return
        scene.until_ended(row)
        row.operator = AGAIN
    scene.again(scene.rows[-1])
    scene.until_step(STEPS // 4)
    scene.finish()


def killed_sender(scene: Scene) -> None:
    """The process that sends the log to MLflow is killed; the driver sends the rest at the end."""
    scene.start()
    scene.until_step(scene.a_step(10, STEPS // 2))
    _, pid = scene.run.log_sender.read_text().split()
    row = scene.strike("killed-sender", "SIGKILL of the process that sends the log")
    psutil.Process(int(pid)).kill()
    row.note = f"process of update {scene.progress.last_step}"
    scene.finish()


def killed_together(scene: Scene) -> None:
    """A power failure: all processes at once, at a drawn time of a drawn update."""
    group = scene.start()
    scene.until_step(scene.a_step(30, STEPS - 30))
    time.sleep(scene.random.uniform(0, 0.1))
    row = scene.strike("power-failure", "SIGKILL of all processes at once")
    group.kill()
    row.exit_codes.append(-signal.SIGKILL)
    scene.again(row)
    scene.until_trained_again()
    scene.finish()
