"""Processes that die or hang: in a call of the file system, together, or under Ray; and clocks that are set."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.injected import Injected
from tests.chaos.scene import AGAIN, STEPS, WORKERS, Scene, pid_of

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
        row = scene.strike(name, fault, f"call {call}")
        if not struck.exists():
            row.problems.append("the run ended before the moment came")
            return
        scene.until_ended(row)
        row.operator = AGAIN
    scene.again(scene.rows[-1])
    scene.until_step(STEPS // 4)
    scene.finish()


def killed_together(scene: Scene) -> None:
    """A power failure: all processes at once, at a drawn time of a drawn update."""
    group = scene.start()
    scene.until_step(30, STEPS - 30)
    time.sleep(scene.random.uniform(0, 0.1))
    row = scene.strike("power-failure", "SIGKILL of all processes at once")
    group.kill()
    row.exit_codes.append(-signal.SIGKILL)
    scene.again(row)
    scene.until_trained_again()
    scene.finish()


def clock_jumps(scene: Scene) -> None:
    """The clock of every rank goes back an hour, and forward a day; it stays so over a kill."""
    clock = scene.directory / "clock"
    fault = Injected("", "", rank=-1, clock=str(clock))
    group = scene.start(fault)
    with scene.strikes("clock-back", "the clock goes back an hour", 10, 50):
        clock.write_text("-3600")
    with scene.strikes("clock-forward", "the clock goes forward a day, then all are killed", 60, 90) as row:
        clock.write_text("86400")
        scene.until_step(STEPS - 60)
        group.kill()
        scene.again(row, fault)
    scene.finish()


def ray_processes(scene: Scene) -> None:
    """One run on a local Ray cluster whose processes are lost one after the other."""
    driver = scene.drive()
    with scene.strikes("rank", "SIGKILL of a rank", 10, 30):
        os.kill(pid_of(scene.run, scene.random.randrange(WORKERS)), signal.SIGKILL)
    with scene.strikes("hang", "SIGSTOP of a rank: it hangs", 40, 55, "guards.stall_timeout_s=60"):
        os.kill(pid_of(scene.run, scene.random.randrange(WORKERS)), signal.SIGSTOP)
    with scene.strikes("raylet", "SIGKILL of Ray's node process under the driver", 65, 80) as row:
        next(child for child in psutil.Process(driver.pid).children() if child.name() == "raylet").kill()
        scene.ends_and_starts_again(row)
    with scene.strikes("driver", "SIGKILL of the driver", 90, 110) as row:
        assert scene.driver is not None
        scene.driver.kill()
        scene.ends_and_starts_again(row)
    scene.finish()


_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}


@contextmanager
def two_nodes(directory: Path) -> Iterator[Any]:
    """A cluster with a node for each worker, the head among them."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    try:
        cluster.add_node(wait=True, **_NODE)
        yield cluster
    finally:
        cluster.shutdown()


def lost_node(scene: Scene) -> None:
    """The group waits for a new node after it lost one."""
    cluster = scene.around
    scene.drive(f"cluster.address={cluster.address}")
    with scene.strikes("node", "SIGKILL of a node's processes; another node joins 5 s later", 20, 70):
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        time.sleep(5)
        cluster.add_node(wait=True, **_NODE)
    scene.finish()
