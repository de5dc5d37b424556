"""Checks of hardware and limits: CPUs, memory, GPUs, open files, and disks with durable writes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.storage import commit, open_artefact
from cluster.checks.check import GIB, Check, Status
from cluster.memory import memory

_MIN_FREE_GIB: dict[Status, float] = {"fail": 1.0, "warn": 20.0}
_MIN_MEMORY_GIB = 4.0
_MIN_SHARED_MEMORY_GIB = 0.6
"""The object store of a local Ray cluster takes 0.5 GiB of /dev/shm."""
_MIN_OPEN_FILES = 4096
_GPU_TIMEOUT_S = 15


def check_cpus() -> Check:
    """CPUs that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("cpus", "ok", f"{usable} of {os.cpu_count()}")


def check_memory() -> Check:
    """Available memory, within the container's limit."""
    total, available = memory()
    found = f"{available / GIB:.1f} GiB available of {total / GIB:.1f} GiB"
    if available >= _MIN_MEMORY_GIB * GIB:
        return Check("memory", "ok", found)
    return Check("memory", "warn", found, "stop what else runs here, or lower batch.micro_batch_size")


def check_gpus() -> Check:
    """GPUs as torch sees them; torch is imported only if the machine has one."""
    if shutil.which("nvidia-smi") is None and not list(Path("/dev").glob("nvidia[0-9]*")):
        return Check("gpus", "ok", "none: training runs on CPUs")
    program = (
        "import torch; n = torch.cuda.device_count();"
        "print(n, *[torch.cuda.get_device_name(i) for i in range(n)], sep='|')"
    )
    try:
        asked = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=_GPU_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("gpus", "warn", f"torch cannot say: {error}", "nvidia-smi")
    count, *names = asked.stdout.strip().split("|")
    if int(count) == 0:
        return Check(
            "gpus",
            "warn",
            f"the machine has a GPU that torch {metadata.version('torch')} cannot use",
            "compare `nvidia-smi` with the CUDA version of torch; install a torch built for the driver",
        )
    return Check("gpus", "ok", ", ".join(names))


def check_shared_memory(path: Path = Path("/dev/shm")) -> Check:
    """Room for Ray's object store; containers often have 64 MiB."""
    if not path.is_dir():
        return Check("shared memory", "warn", f"no {path}: Ray keeps its objects in /tmp, slowly")
    usage = shutil.disk_usage(path)
    found = f"{usage.free / GIB:.2f} GiB free in {path}"
    if usage.free >= _MIN_SHARED_MEMORY_GIB * GIB:
        return Check("shared memory", "ok", found)
    return Check("shared memory", "warn", found, "start the container with --shm-size=2g (docker, podman)")


def check_open_files() -> Check:
    """Limit on the open files and sockets of a process; Ray holds many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _MIN_OPEN_FILES:
        return Check("open files", "ok", f"{soft} per process")
    return Check(
        "open files",
        "warn",
        f"{soft} per process; Ray wants more than {_MIN_OPEN_FILES}",
        "ulimit -n 65536" + (f" (as root: the hard limit is {hard})" if 0 <= hard <= _MIN_OPEN_FILES else ""),
    )


def check_disk(name: str, directory: Path) -> Check:
    """Free space at `directory`, which need not exist yet."""
    place = existing_place(directory)
    free_gib = shutil.disk_usage(place).free / GIB
    found = f"{free_gib:.1f} GiB free at {place}"
    for status in ("fail", "warn"):
        if free_gib < _MIN_FREE_GIB[status]:
            return Check(name, status, found, "delete what is not needed, or choose a place on a larger disk")
    return Check(name, "ok", found)


def check_durable_writes(directory: Path) -> Check:
    """Whether files can be flushed and directories renamed atomically, which commits rely on."""
    place = existing_place(directory)
    try:
        with tempfile.TemporaryDirectory(prefix=".cloze-doctor-", dir=place) as scratch:
            staged = Path(scratch) / "staged"
            staged.mkdir()
            (staged / "file").write_bytes(b"probe")
            commit(staged, Path(scratch) / "committed", "probe", config={})
            open_artefact(Path(scratch) / "committed")
    except (OSError, ClozeError) as error:
        return Check(
            "durable writes",
            "fail",
            f"{place}: {getattr(error, 'problem', error)}",
            "choose a runs directory that is writable: --runs-dir DIR",
        )
    return Check("durable writes", "ok", f"fsync and atomic rename work at {place}")


def existing_place(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    path = directory.resolve()
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())
