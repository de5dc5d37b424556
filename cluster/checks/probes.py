"""Actors that check a cluster on its nodes: a probe of one node, and the ranks of an all-reduce between two."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import IO

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.owner import lock
from cluster.artefacts.storage import commit, open_artefact
from cluster.checks.machine import Check, Places, check_machine, existing_place

_PACKAGES = ("ray", "torch", "deepspeed", "mlflow")
_CODE = ("cluster", "data_prep", "models", "pipeline")
_POLL_S = 0.2
_NUMBERS = 4 * 1024**2
"""float32 numbers of an exchange: 16 MiB, about a bucket of gradients."""
_REPEATS = 5
_EXCHANGE_TIMEOUT_S = 60.0


class NodeProbe:
    """Answers for its node."""

    def __init__(self) -> None:
        self._held: IO[bytes] | None = None

    def facts(self, places: Places) -> tuple[dict[str, str], list[Check]]:
        """Versions, and all checks of the machine."""
        return versions(), check_machine(places)

    def now_s(self) -> float:
        """The clock, in seconds since 1970."""
        return time.time()

    def make_scratch(self, directory: Path, name: str) -> Path:
        """A directory for the checks of shared storage, in `directory` or in the nearest one that exists."""
        scratch = existing_place(directory) / name
        scratch.mkdir()
        return scratch

    def commit(self, scratch: Path, name: str) -> None:
        """Commit an artefact, as every stage of cloze does: staged, flushed, renamed."""
        staged = scratch / f".{name}.partial"
        staged.mkdir()
        (staged / "file").write_bytes(name.encode())
        commit(staged, scratch / name, "probe", config={"name": name})

    def replace(self, path: Path, text: str) -> None:
        """Replace a file in one step, as configurations and requests to stop are."""
        write_durably(path, text.encode())

    def reads_artefact(self, directory: Path, timeout_s: float) -> float | None:
        """Seconds until an artefact of another node verifies here; None when it does not in time."""
        return _wait_for(directory.parent, lambda: open_artefact(directory) is not None, timeout_s)

    def reads_text(self, path: Path, text: str, timeout_s: float) -> float | None:
        """Seconds until a file has this text here; None when it does not in time."""
        return _wait_for(path.parent, lambda: path.read_text() == text, timeout_s)

    def hold_lock(self, path: Path) -> None:
        """Lock a file until `release`."""
        self._held = path.open("wb")
        lock(self._held.fileno())

    def release(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def is_locked(self, path: Path) -> bool:
        """Whether another process holds the lock."""
        with path.open("wb") as stream:
            try:
                lock(stream.fileno(), wait_s=0)
            except BlockingIOError:
                return True
        return False

    def remove(self, scratch: Path) -> None:
        """Remove the directory of the checks."""
        shutil.rmtree(scratch, ignore_errors=True)


def versions() -> dict[str, str]:
    """Versions of Python, packages and cloze's code, by name: they must be equal on all nodes. `missing` stands for a
    package that is not installed; nothing is imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    return found | {"cloze": _code_version()}


def _code_version() -> str:
    """A hash of cloze's own code, which distinguishes two clones of one version."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"code {digest.hexdigest()[:12]}"


def _wait_for(directory: Path, holds: Callable[[], bool], timeout_s: float) -> float | None:
    began = time.monotonic()
    while True:
        try:
            # A list of the directory makes NFS ask the server again.
            os.listdir(directory)
            if holds():
                return time.monotonic() - began
        except (OSError, ClozeError):
            # Network file systems show a new name, or new contents, with a delay.
            pass
        if time.monotonic() - began > timeout_s:
            return None
        time.sleep(_POLL_S)


class ExchangeRank:
    """One of two ranks."""

    def address(self) -> tuple[str, int]:
        """Address of this node, as the other one reaches it, and a free port."""
        import ray

        with socket.create_server(("", 0)) as server:
            return ray.util.get_node_ip_address(), server.getsockname()[1]

    def exchange(self, rank: int, host: str, port: int, backend: str) -> tuple[bool, float]:
        """Sum numbers with the other rank a few times.

        Returns:
            Whether the sums are right, and the GiB that were summed per second; between two ranks each sends and
            receives as many.

        Raises:
            RuntimeError: the other rank cannot be reached, or the sum fails.
        """
        import torch
        import torch.distributed as dist

        device = torch.device("cuda" if backend == "nccl" else "cpu")
        place = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        dist.init_process_group(
            backend,
            init_method=place,
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=_EXCHANGE_TIMEOUT_S),
        )
        try:
            numbers = torch.arange(_NUMBERS, dtype=torch.float32, device=device) % 1024
            expected, seconds = 3 * numbers, []
            correct = True
            for _ in range(_REPEATS):
                mine = (rank + 1) * numbers
                dist.barrier()
                began = time.perf_counter()
                dist.all_reduce(mine)
                # Reading a value waits for the GPU.
                correct &= bool((mine == expected).all().item())
                seconds.append(time.perf_counter() - began)
        finally:
            dist.destroy_process_group()
        return correct, _NUMBERS * 4 / min(seconds) / 1024**3
