"""Processes under Ray that die or hang: a rank, the node process, the driver."""

from __future__ import annotations

import os
import signal

import psutil

from tests.chaos.scene import WORKERS, Scene, pid_of


def ray_processes(scene: Scene) -> None:
    """One run on a local Ray cluster whose processes are lost one after the other."""
    driver = scene.drive()
    scene.until_step(scene.a_step(10, 30))
    row = scene.strike("rank", "SIGKILL of a rank")
    os.kill(pid_of(scene.run, scene.random.randrange(WORKERS)), signal.SIGKILL)
    scene.until_trained_again()
    scene.until_step(scene.a_step(40, 55))
    row = scene.strike("hang", "SIGSTOP of a rank: it hangs")
    os.kill(pid_of(scene.run, scene.random.randrange(WORKERS)), signal.SIGSTOP)
    row.note = "guards.stall_timeout_s=60"
    scene.until_trained_again()
    scene.until_step(scene.a_step(65, 80))
    row = scene.strike("raylet", "SIGKILL of Ray's node process under the driver")
    next(child for child in psutil.Process(driver.pid).children() if child.name() == "raylet").kill()
    scene.until_ended(row)
    scene.again(row)
    scene.until_trained_again()
    scene.until_step(scene.a_step(90, 110))
    row = scene.strike("driver", "SIGKILL of the driver")
    assert scene.driver is not None
    scene.driver.kill()
    scene.until_ended(row)
    scene.again(row)
    scene.until_trained_again()
    scene.finish()
