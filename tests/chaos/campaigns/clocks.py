"""Clocks that are set while a run trains."""

from __future__ import annotations

from tests.chaos.injected import Injected
from tests.chaos.scene import STEPS, Scene


def clock_jumps(scene: Scene) -> None:
    """The clock of every rank goes back an hour, and forward a day; it stays so over a kill."""
    clock = scene.directory / "clock"
    group = scene.start(Injected("", "", rank=-1, clock=str(clock)))
    scene.until_step(scene.a_step(10, 50))
    scene.strike("clock-back", "the clock goes back an hour")
    clock.write_text("-3600")
    scene.until_trained_again()
    scene.until_step(scene.a_step(60, 90))
    row = scene.strike("clock-forward", "the clock goes forward a day, then all are killed")
    clock.write_text("86400")
    scene.until_step(STEPS - 60)
    group.kill()
    scene.again(row, fault=Injected("", "", rank=-1, clock=str(clock)))
    scene.until_trained_again()
    scene.finish()
