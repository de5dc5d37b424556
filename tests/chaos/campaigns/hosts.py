"""Two hosts on this machine with a cable between them.

A host has process ids, a name and a network namespace of its own, joined to the other by a switch in a third. Storage
is not behind the cable. A cut takes a host's port of the switch down, as somebody does who pulls the cable out.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.scene import WORKERS, Scene
from tests.pipeline.process_group import ONE_THREAD, PATIENCE_S

_PORT = 29500
_SLOW = ("tbf", "rate", "2mbit", "burst", "4kb", "limit", "6kb")
"""A line that is slow, and a queue of some packets: more are lost."""


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class HostRanks:
    """A rank on each host, as `srun` starts them."""

    def __init__(self, program: Sequence[str], hosts: Sequence[Sequence[str]], output: Path) -> None:
        """
        Args:
            hosts: by rank, the start of a command that runs on its host.
            output: the file that gets what they print.
        """
        self._output = output
        shared = os.environ | ONE_THREAD | {"MASTER_ADDR": address(0), "MASTER_PORT": str(_PORT)}
        shared |= {"WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0"}
        with output.open("wb") as stream:
            self._processes = [
                subprocess.Popen(
                    [*host, sys.executable, "-m", *program],
                    env=shared | {"RANK": str(rank)},
                    stdout=stream,
                    stderr=stream,
                )
                for rank, host in enumerate(hosts)
            ]

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def codes(self) -> list[int | None]:
        """Exit codes by rank; None while it runs."""
        return [process.poll() for process in self._processes]

    def poll(self) -> int | None:
        """The exit code of the first that failed; 0 when all have come to their end, None while they run."""
        return next((code for code in self.codes if code), None if None in self.codes else 0)

    def wait(self) -> int:
        """Wait until every rank has ended by itself; returns what `poll` does."""
        for process in self._processes:
            process.wait(PATIENCE_S)
        return self.poll() or 0

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


class Hosts:
    """The hosts and the cables between them."""

    def __init__(self, count: int) -> None:
        self._switch = f"chaos-{os.getpid()}-switch"
        self.names = [f"chaos-{os.getpid()}-host{number}" for number in range(count)]
        for name in (self._switch, *self.names):
            _run("ip", "netns", "add", name)
        self._on_switch("add", "bridge", "type", "bridge")
        self._on_switch("set", "bridge", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            self._on_switch("add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._on_switch("set", port, "master", "bridge", "up")
            _run("ip", "-n", name, "address", "add", f"{address(number)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", link, "up")

    def _on_switch(self, *arguments: str) -> None:
        _run("ip", "-n", self._switch, "link", *arguments)

    def close(self) -> None:
        for name in (self._switch, *self.names):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def on(self, number: int, directory: Path) -> list[str]:
        """The start of a command that runs the rest of it on a host."""
        known = directory / "hosts"
        lines = [f"{address(other)} host{other}\n" for other in range(len(self.names))]
        known.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        inside = f'mount --bind {shlex.quote(str(known))} /etc/hosts && hostname host{number} && exec "$@"'
        return [
            *(
                "ip",
                "netns",
                "exec",
                self.names[number],
                "unshare",
                "--fork",
                "--kill-child",
                "--pid",
                "--uts",
            ),
            *("--mount-proc", "sh", "-c", inside, "sh"),
        ]

    def start(self, scene: Scene) -> HostRanks:
        """A rank of the scene's run on every host, which has process ids and a name of its own."""
        hosts = [self.on(number, scene.directory) for number in range(len(self.names))]
        ranks = scene.group = HostRanks(scene.program(), hosts, scene.directory / "ranks.log")
        return ranks

    def cut(self, seconds: float | None = None) -> None:
        """Pull the last host's cable out; for some seconds, or until it is mended."""
        self._on_switch("set", f"port{len(self.names) - 1}", "down")
        if seconds is not None:
            time.sleep(seconds)
            self.mend()

    def mend(self) -> None:
        self._on_switch("set", f"port{len(self.names) - 1}", "up")

    @contextmanager
    def slow(self) -> Iterator[list[int]]:
        """Let all lines lose packets for the time of the block; then the list has their number."""
        lost: list[int] = []
        for name in self.names:
            _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *_SLOW)
        try:
            yield lost
        finally:
            for name in self.names:
                (found,) = json.loads(_run("tc", "-n", name, "-s", "-j", "qdisc", "show", "dev", "eth0"))
                lost.append(found["drops"])
                _run("tc", "-n", name, "qdisc", "delete", "dev", "eth0", "root")


@contextmanager
def two_hosts(directory: Path) -> Iterator[Hosts]:
    hosts = Hosts(WORKERS)
    try:
        yield hosts
    finally:
        hosts.close()


def cannot_cable() -> str:
    """Why no hosts with cables can be imitated here; empty where they can."""
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in ("ip", "tc", "unshare")):
        return "network namespaces need root, `ip` and `tc`"
    try:
        Hosts(1).close()
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"
    return ""


def cables(scene: Scene) -> None:
    """The cable is out for seconds and for a minute, and then the line is slow and loses packets."""
    hosts: Hosts = scene.around
    hosts.start(scene)
    for seconds, first in ((5, 5), (60, 40)):
        fault, note = f"the cable between two hosts out for {seconds} s", "guards.stall_timeout_s=600"
        with scene.strikes(f"cut-{seconds}-s", fault, first, first + 20, note):
            hosts.cut(seconds)
    scene.until_step(80, 100)
    row = scene.strike("packets-lost", "a line of 2 Mbit/s between two hosts that loses packets")
    with hosts.slow() as lost:
        begun = scene.progress.last_step
        scene.until(lambda: scene.progress.last_step > begun + 10, "ten updates on a slow line")
    row.note = f"{sum(lost)} packets lost in ten updates"
    scene.finish()


def cut_for_good(scene: Scene) -> None:
    """The cable stays out until every rank has given up."""
    hosts: Hosts = scene.around
    ranks = hosts.start(scene)
    fault, note = "the cable between two hosts out until the run gives up", "guards.stall_timeout_s=60"
    with scene.strikes("cut-for-good", fault, 45, 100, note) as row:
        hosts.cut()
        scene.until_ended(row)
        row.exit_codes[:] = sorted({code for code in ranks.codes if code is not None})
        hosts.mend()
        hosts.start(scene)
        row.operator = "the same commands again, on both hosts"
    scene.finish()
