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
WENT_ON = "the save failed, training went on"
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


def can_mount() -> str:
    """Why small disks cannot be made here; empty where they can."""
    return "" if os.geteuid() == 0 else "mounting a file system needs root"


def remount(disk: Path, mode: str) -> None:
    """Make a disk read-only (`ro`) or not (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True, capture_output=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Take all that is left of a disk for the time of the block."""
    path = disk / "filler"
    for block in (bytes(1 << 16), b"0"):
        with path.open("ab", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(block)
    yield
    path.unlink()


def checkpoint_disk(scene: Scene) -> None:
    """The place of checkpoints is full for a save, then read-only for a save, then full for good."""
    disk: Path = scene.around

    def until_a_save_failed(known: int) -> None:
        scene.until(lambda: failed_saves() > known, "a failed save")

    def failed_saves() -> int:
        return len(scene.run.events(Event.CHECKPOINT_FAILED))

    scene.start()
    fault = "disk of checkpoints full during one save, then freed"
    with scene.strikes("checkpoints-full", fault, 5, 35, WENT_ON), filled(disk):
        until_a_save_failed(0)
    scene.strike("checkpoints-read-only", "disk of checkpoints read-only during one save", WENT_ON)
    remount(disk, "ro")
    until_a_save_failed(failed_saves())
    remount(disk, "rw")
    scene.until_trained_again()
    row = scene.strike("checkpoints-full-for-good", "disk of checkpoints full until the run gives up")
    with filled(disk):
        scene.until_ended(row)
    scene.again(row)
    scene.until_trained_again()
    scene.finish()


def run_disk(scene: Scene) -> None:
    """The disk of the run's directory, its log and its heartbeats is full."""
    scene.start()
    with scene.strikes("log-full", "disk of the run's log full", 30, STEPS // 2) as row:
        with filled(scene.around):
            scene.until_ended(row)
        scene.again(row)
    scene.finish()


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
    scene.strike("stale-start", "ESTALE when the data is opened", "it is opened again")
    scene.until_trained_again()
    scene.finish()
