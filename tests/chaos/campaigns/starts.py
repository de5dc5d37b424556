"""Two starts of one run at once: on one host, and from two hosts that see each other's locks or not."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.injected import Injected
from tests.chaos.scene import STEPS, WORKERS, Scene

NO_LOCKS = Injected("fcntl.flock", r"/runs/", times=10**9, error=errno.ENOLCK, rank=-1)


def can_be_another_host() -> str:
    """Why no second host can be imitated here; empty where it can."""
    probe = subprocess.run(["unshare", "--fork", "--pid", "--uts", "true"], capture_output=True)
    return "" if probe.returncode == 0 else "process and host name spaces are not allowed here"


def as_host(name: str, addresses: Mapping[str, str], directory: Path) -> list[str]:
    """The start of a command that gives the rest of it process ids and a host's name of its own.

    Args:
        addresses: of all hosts that it shall know, by name.
        directory: gets a file of them.
    """
    hosts = directory / "hosts"
    lines = [f"{address} {host}\n" for host, address in {"localhost": "127.0.0.1", **addresses}.items()]
    hosts.write_text("".join(lines))
    inside = f'mount --bind {shlex.quote(str(hosts))} /etc/hosts && hostname {name} && exec "$@"'
    return [
        *("unshare", "--fork", "--kill-child", "--pid", "--uts", "--mount-proc"),
        *("sh", "-c", inside, "sh"),
    ]


def on_another_host(
    scene: Scene, fault: Injected | None, launcher: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the run as another host does: with other process ids, and another name. One rank without a launcher."""
    module = ["pipeline.pretrain"] if fault is None else ["tests.chaos.injected", fault.to_argument()]
    python = [sys.executable, "-m", *launcher, *module, str(scene.run.path)]
    return subprocess.Popen(
        [*as_host("second-host", {"second-host": "127.0.0.1"}, scene.directory), *python],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )


def two_starts(scene: Scene) -> None:
    """A second start beside a living one is told who holds the run, from the same host and from others."""
    group = scene.start(NO_LOCKS)
    scene.until_step(scene.a_step(5, 30))
    holder = f"process {group.pids[0]} on {os.uname().nodename}"
    for name, fault, injected in (
        ("second-start", "a second start on another host", None),
        ("second-start-no-locks", "the same on a file system without locks", NO_LOCKS),
    ):
        row = scene.strike(name, fault)
        second = on_another_host(scene, injected)
        said, _ = second.communicate()
        row.ended(second.returncode, said)
        row.note = "told who holds the run"
        if second.returncode != 33 or holder not in said:
            row.problems.append(f"it was not told of {holder}: {said[-300:]}")
        row.operator = "nothing: the first start trains on"
        if scene.progress.last_step < STEPS - 1:
            scene.until_trained_again()
    scene.finish()


def cut_off_host(scene: Scene) -> None:
    """A host stops answering and another takes the run over; the first comes back, and must not write."""
    first = scene.start(NO_LOCKS)
    scene.until_step(scene.a_step(10, 40))
    for pid in first.pids:
        os.kill(pid, signal.SIGSTOP)
    row = scene.strike("cut-off-host", "a host is cut off, and comes back after another has taken over")
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
    ranks = on_another_host(scene, NO_LOCKS, [*torchrun, "-m"])
    scene.until(lambda: scene.progress.has_moved_since(scene.struck_s), "training on the second host")
    for pid in first.pids:
        os.kill(pid, signal.SIGCONT)
    row.ended(first.wait(), first.output)
    row.operator = "a start on the other host"
    said, _ = ranks.communicate()
    scene.check(ranks.returncode)
    if ranks.returncode:
        row.problems.append(said[-600:])
