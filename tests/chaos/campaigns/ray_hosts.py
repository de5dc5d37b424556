"""A Ray cluster on two hosts with a cable between them, which is out for seconds and for minutes."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.chaos.campaigns.network import Hosts, address, two_hosts
from tests.chaos.scene import Scene
from tests.pipeline.process_group import PATIENCE_S

_PORT = 6379
_STARTED = "Ray runtime started"


class RayHosts:
    """Ray on two hosts: the head, and a node."""

    def __init__(self, hosts: Hosts, directory: Path, temporary: str) -> None:
        """
        Args:
            temporary: directory with a short name, for Ray's sockets.
        """
        self.hosts, self.address = hosts, f"{address(0)}:{_PORT}"
        self._directory, self._temporary = directory, temporary
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        self._access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._nodes = [self._start(0), self._start(1)]

    @property
    def on_head(self) -> list[str]:
        """The start of a command that runs on the head's host."""
        (process,) = psutil.Process(self._nodes[0].pid).children()
        access = [f"{name}={value}" for name, value in self._access.items()]
        return ["nsenter", "--target", str(process.pid), "--all", f"--wd={Path.cwd()}", "env", *access]

    def start_again(self) -> None:
        """Start Ray again on the host that is not the head, as its supervisor does."""
        self._end(self._nodes.pop())
        self._nodes.append(self._start(1))

    def close(self) -> None:
        """End all processes on both hosts."""
        for node in self._nodes:
            self._end(node)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        head = ("--head", f"--port={_PORT}", f"--temp-dir={self._temporary}", "--include-dashboard=false")
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"),
            *(f"--node-ip-address={address(number)}", "--object-store-memory=100000000"),
            *((f"--address={self.address}",) if number else head),
        ]
        log = self._directory / f"ray-{number}.log"
        log.unlink(missing_ok=True)
        with log.open("ab") as stream:
            node = subprocess.Popen(
                [*self.hosts.on(number, self._directory), *command],
                env=os.environ | self._access | {"DS_ACCELERATOR": "cpu"},
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + PATIENCE_S
        while _STARTED not in log.read_text():
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
    temporary = tempfile.mkdtemp(prefix="cr-")
    with two_hosts(directory) as hosts:
        ray = RayHosts(hosts, directory, temporary)
        try:
            yield ray
        finally:
            ray.close()
            shutil.rmtree(temporary, ignore_errors=True)


def cables(scene: Scene) -> None:
    """Seconds are waited out; for a cut of two minutes Ray gives the node up, and the group begins again."""
    ray: RayHosts = scene.around
    scene.drive(f"cluster.address={ray.address}", inside=ray.on_head)
    scene.until_step(scene.a_step(5, 30))
    scene.strike("ray-cut-5-s", "the cable between Ray's head and a node out for 5 s")
    ray.hosts.cut()
    time.sleep(5)
    ray.hosts.mend()
    scene.until_trained_again()
    scene.until_step(scene.a_step(45, 100))
    row = scene.strike("ray-cut-120-s", "the same for 2 minutes")
    ray.hosts.cut()
    time.sleep(120)
    ray.hosts.mend()
    ray.start_again()
    row.operator = "a supervisor: Ray started again on that host"
    row.note = "guards.stall_timeout_s=60"
    scene.until_trained_again()
    scene.finish()
