"""Storage that is full, read-only, slow, or has NFS's habits."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.run.events import Event
from tests.chaos.injected import Injected
from tests.chaos.scene import STEPS, Scene

PLACE_BYTES = 24 << 20


@contextmanager
def small_disk(directory: Path, size_bytes: int = PLACE_BYTES) -> Iterator[Path]:
    """A file system of its own in `directory/disk`. Raises PermissionError where mounting is not allowed."""
    place = directory / "disk"
    place.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "chaos", str(place)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        raise PermissionError("mounting a file system is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left of a disk; returns the file that does."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(1 << 16))
    with path.open("ab", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(b"0")
    return path


def _failed_saves(scene: Scene) -> int:
    return len(scene.run.events(Event.CHECKPOINT_FAILED))


def checkpoint_disk(scene: Scene) -> None:
    """The place of checkpoints is full for a save, then read-only for a save, then full for good."""
    disk: Path = scene.around
    scene.start()
    scene.until_step(scene.a_step(5, 35))
    row = scene.strike("checkpoints-full", "disk of checkpoints full during one save, then freed")
    filler = fill(disk)
    scene.until(lambda: _failed_saves(scene) > 0, "a failed save")
    filler.unlink()
    scene.until_trained_again()
    row.note = "the save failed, training went on"
    row = scene.strike("checkpoints-read-only", "disk of checkpoints read-only during one save")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    known = _failed_saves(scene)
    scene.until(lambda: _failed_saves(scene) > known, "a failed save")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    scene.until_trained_again()
    row.note = "the save failed, training went on"
    row = scene.strike("checkpoints-full-for-good", "disk of checkpoints full until the run gives up")
    filler = fill(disk)
    scene.until_ended(row)
    filler.unlink()
    scene.again(row)
    scene.until_trained_again()
    scene.finish()


def run_disk(scene: Scene) -> None:
    """The disk of the run's directory, its log and its heartbeats is full."""
    disk: Path = scene.around
    scene.start()
    scene.until_step(scene.a_step(30, STEPS // 2))
    row = scene.strike("log-full", "disk of the run's log full")
    filler = fill(disk)
    scene.until_ended(row)
    filler.unlink()
    scene.again(row)
    scene.until_trained_again()
    scene.finish()


HABITS = (
    ("slow-storage", "every rename takes 0.3 s longer", Injected("os.rename", "", times=10**9, sleep_s=0.3)),
    (
        "stale-handle",
        "ESTALE at the commit of a checkpoint",
        Injected("os.rename", r"checkpoints/step-\d+ ", first=3, error=errno.ESTALE),
    ),
    (
        "not-empty",
        "ENOTEMPTY when an old checkpoint is deleted while it is read",
        Injected("os.rmdir", "", first=2, times=3, error=errno.ENOTEMPTY),
    ),
)


def habits(scene: Scene) -> None:
    """Habits of shared storage, one after the other; each start has another one, and ends by a kill but the last."""
    for number, (name, fault, injected) in enumerate(HABITS):
        struck = scene.directory / name
        group = scene.start(Injected(**{**vars(injected), "struck": str(struck)}))
        scene.until(lambda struck=struck, group=group: struck.exists() or group.poll() is not None, name)
        row = scene.strike(name, fault)
        if not struck.exists():
            row.problems.append("the run ended before the moment came")
            return
        scene.until_trained_again()
        if group.poll() is not None:
            row.exit_codes.append(group.poll() or 0)
        if number < len(HABITS) - 1:
            scene.until_step(min(STEPS - 30, scene.progress.last_step + 10))
            scene.over()
            group.kill()
    scene.finish()


def stale_start(scene: Scene) -> None:
    """ESTALE while a run starts: the data's manifest cannot be opened once."""
    struck = scene.directory / "stale"
    scene.start(Injected("open", r"tokens/manifest\.json", error=errno.ESTALE, struck=str(struck)))
    scene.until(struck.exists, "a stale handle")
    row = scene.strike("stale-start", "ESTALE when the data is opened")
    row.note = "it is opened again"
    scene.until_trained_again()
    scene.finish()


def can_mount() -> str:
    """Why small disks cannot be made here; empty where they can."""
    return "" if os.geteuid() == 0 else "mounting a file system needs root"
