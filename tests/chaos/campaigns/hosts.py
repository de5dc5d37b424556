"""Two hosts on this machine with a cable between them.

A host has process ids, a name and a network namespace of its own, joined to the other by a switch in a third. Storage
is not behind the cable. A cut takes a host's port of the switch down, as somebody does who pulls the cable out.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.chaos.scene import WORKERS, Scene
from tests.pipeline.process_group import ONE_THREAD, PATIENCE_S

_PORT, _RAY_PORT = 29500, 6379
_SLOW = ("tbf", "rate", "2mbit", "burst", "4kb", "limit", "6kb")
"""A line that is slow, and a queue of some packets: more are lost."""


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


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
        addresses = {f"host{other}": address(other) for other in range(len(self.names))}
        host = as_host(f"host{number}", addresses, directory)
        return ["ip", "netns", "exec", self.names[number], *host]

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


class RayHosts:
    """Ray on two hosts: the head, and a node."""

    def __init__(self, hosts: Hosts, directory: Path, temporary: str) -> None:
        """
        Args:
            temporary: directory with a short name, for Ray's sockets.
        """
        self.hosts, self.address = hosts, f"{address(0)}:{_RAY_PORT}"
        self._directory, self._temporary = directory, temporary
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        self._access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._nodes = [self._start(0), self._start(1)]

    @property
    def on_head(self) -> list[str]:
        (process,) = psutil.Process(self._nodes[0].pid).children()
        access = [f"{name}={value}" for name, value in self._access.items()]
        return ["nsenter", "--target", str(process.pid), "--all", f"--wd={Path.cwd()}", "env", *access]

    def start_again(self) -> None:
        """Start Ray again on the host that is not the head, as its supervisor does."""
        self._end(self._nodes.pop())
        self._nodes.append(self._start(1))

    def close(self) -> None:
        for node in self._nodes:
            self._end(node)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        head = ("--head", f"--port={_RAY_PORT}", f"--temp-dir={self._temporary}", "--include-dashboard=false")
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"),
            *(f"--node-ip-address={address(number)}", "--object-store-memory=100000000"),
            *((f"--address={self.address}",) if number else head),
        ]
        log = self._directory / f"ray-{number}.log"
        with log.open("wb") as stream:
            node = subprocess.Popen(
                [*self.hosts.on(number, self._directory), *command],
                env=os.environ | self._access | {"DS_ACCELERATOR": "cpu"},
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        return node

    def _end(self, node: subprocess.Popen[bytes]) -> None:
        node.kill()
        node.wait()


@contextmanager
def ray_on_two_hosts(directory: Path) -> Iterator[RayHosts]:
    """A cluster with room for a rank on each host."""
    directory.mkdir(parents=True, exist_ok=True)
    short = tempfile.TemporaryDirectory(prefix="cr-", ignore_cleanup_errors=True)
    with short as temporary, two_hosts(directory) as hosts:
        ray = RayHosts(hosts, directory, temporary)
        try:
            yield ray
        finally:
            ray.close()


def cables_of_ray(scene: Scene) -> None:
    """Seconds are waited out; for a cut of two minutes Ray gives the node up, and the group begins again."""
    ray: RayHosts = scene.around
    scene.drive(f"cluster.address={ray.address}", inside=ray.on_head)
    with scene.strikes("ray-cut-5-s", "the cable between Ray's head and a node out for 5 s", 5, 30):
        ray.hosts.cut(5)
    with scene.strikes(
        "ray-cut-120-s", "the same for 2 minutes", 45, 100, "guards.stall_timeout_s=60"
    ) as row:
        ray.hosts.cut(120)
        ray.start_again()
        row.operator = "a supervisor: Ray started again on that host"
    scene.finish()
