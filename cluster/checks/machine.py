"""Checks of this machine and of the services that it reaches: Python and packages, CPUs, memory, GPUs, disks with
durable writes, Ray, the tracking store. Each has a finding, and a remedy where it fails.

Kept fast: no heavy library is imported unless the machine has a GPU.
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import psutil
from packaging.requirements import Requirement

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ClozeError, ClusterUnreachableError
from cluster.artefacts.storage import commit, open_artefact
from cluster.connecting import host_and_port, http_get, require_dashboard, tcp_answers
from cluster.local_cluster import STOP_COMMAND, find_local_cluster
from cluster.node_load import memory

Status = Literal["ok", "warn", "fail"]
GIB = 1024**3
_MIN_FREE_GIB: dict[Status, float] = {"fail": 1.0, "warn": 20.0}
_MIN_MEMORY_GIB = 4.0
_MIN_SHARED_MEMORY_GIB = 0.6
"""The object store of a local Ray cluster takes 0.5 GiB of /dev/shm."""
_MIN_OPEN_FILES = 4096
_GPU_TIMEOUT_S = 15
_TRACKING_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of this machine."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """The command to type or the change to make; empty if the check passed."""


def verdict(name: str, passes: bool, found: str, remedy: str, *, otherwise: Status = "fail") -> Check:
    """A check that is ok where it passes, and `otherwise` has a remedy."""
    return Check(name, "ok", found) if passes else Check(name, otherwise, found, remedy)


@dataclass(frozen=True, slots=True)
class Places:
    """Directories and addresses that a run would use."""

    runs_dir: Path
    data_dir: Path | None
    ray_address: str | None
    """None: verbs start their own Ray."""
    tracking_uri: str | None
    """None: SQLite in `runs_dir`."""


def run_checks(places: Places) -> list[Check]:
    """All checks, in the order of applying their remedies; none leaves anything on disk."""
    return [
        *check_machine(places),
        _guarded("ray", partial(check_ray, places.ray_address)),
    ]


def check_machine(places: Places) -> list[Check]:
    """The checks of this machine, and of the tracking store as it is seen from here."""
    disks = {"data disk": places.data_dir, "runs disk": places.runs_dir}
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("packages", check_packages),
        ("memory", check_memory),
        ("gpus", check_gpus),
        ("shared memory", check_shared_memory),
        ("open files", check_open_files),
        *((name, partial(check_disk, name, place)) for name, place in disks.items() if place),
        ("durable writes", partial(check_durable_writes, places.runs_dir)),
        ("tracking", partial(check_tracking, places.tracking_uri)),
    ]
    # cloze does not start with a Python that is too old.
    python = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [Check("python", "ok", python), Check("cpus", "ok", f"{usable} of {os.cpu_count()}")]
    return [*facts, *(_guarded(name, check) for name, check in checks)]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that raises becomes a warning, so that the others still run."""
    try:
        return check()
    except (OSError, ValueError, psutil.Error, ClozeError) as error:
        return Check(name, "warn", f"could not be checked: {type(error).__name__}: {error}")


def check_packages(requirements: list[Requirement] | None = None) -> Check:
    """Installed versions against the declared requirements (by default cloze's own); nothing is imported."""
    needed = _declared_requirements() if requirements is None else requirements
    if not needed:
        return Check("packages", "warn", "no declared requirements were found", "pip install cloze")
    wrong: list[str] = []
    for requirement in needed:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, needs {requirement.specifier}")
    main = []
    for name in ("torch", "ray", "deepspeed"):
        with suppress(metadata.PackageNotFoundError):
            main.append(f"{name} {metadata.version(name)}")
    found = "; ".join(wrong or [f"all {len(needed)} as declared", *([", ".join(main)] if main else [])])
    return verdict("packages", not wrong, found, f"{sys.executable} -m pip install --upgrade cloze")


def _declared_requirements() -> list[Requirement]:
    """From `pyproject.toml` beside the packages (a clone, a submitted job), else from the installed cloze."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        lines = tomllib.loads(project.read_text())["project"]["dependencies"]
    else:
        try:
            lines = metadata.requires("cloze") or []
        except metadata.PackageNotFoundError:
            lines = []
    return [requirement for requirement in map(Requirement, lines) if "extra" not in str(requirement.marker)]


def check_memory() -> Check:
    """Available memory, within the container's limit."""
    total, available = memory()
    found = f"{available / GIB:.1f} GiB available of {total / GIB:.1f} GiB"
    remedy = "stop what else runs here, or lower batch.micro_batch_size"
    return verdict("memory", available >= _MIN_MEMORY_GIB * GIB, found, remedy, otherwise="warn")


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
    unusable = f"the machine has a GPU that torch {metadata.version('torch')} cannot use"
    remedy = "compare `nvidia-smi` with the CUDA version of torch; install a torch built for the driver"
    return verdict("gpus", int(count) > 0, ", ".join(names) or unusable, remedy, otherwise="warn")


def check_shared_memory(path: Path = Path("/dev/shm")) -> Check:
    """Room for Ray's object store; containers often have 64 MiB."""
    if not path.is_dir():
        return Check("shared memory", "warn", f"no {path}: Ray keeps its objects in /tmp, slowly")
    free_gib = shutil.disk_usage(path).free / GIB
    found, remedy = (
        f"{free_gib:.2f} GiB free in {path}",
        "start the container with --shm-size=2g (docker, podman)",
    )
    return verdict("shared memory", free_gib >= _MIN_SHARED_MEMORY_GIB, found, remedy, otherwise="warn")


def check_open_files() -> Check:
    """Limit on the open files and sockets of a process; Ray holds many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft > _MIN_OPEN_FILES
    found = f"{soft} per process" + ("" if enough else f"; Ray wants more than {_MIN_OPEN_FILES}")
    as_root = f" (as root: the hard limit is {hard})" if 0 <= hard <= _MIN_OPEN_FILES else ""
    return verdict("open files", enough, found, f"ulimit -n 65536{as_root}", otherwise="warn")


def check_disk(name: str, directory: Path) -> Check:
    """Free space at `directory`, which need not exist yet."""
    place = existing_place(directory)
    free_gib = shutil.disk_usage(place).free / GIB
    found, remedy = (
        f"{free_gib:.1f} GiB free at {place}",
        "delete what is not needed, or choose a place on a larger disk",
    )
    otherwise = "fail" if free_gib < _MIN_FREE_GIB["fail"] else "warn"
    return verdict(name, free_gib >= _MIN_FREE_GIB["warn"], found, remedy, otherwise=otherwise)


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


def check_ray(address: str | None) -> Check:
    """Whether the cluster that would be used answers."""
    if address is None:
        try:
            local = find_local_cluster()
        except ClusterUnreachableError as error:
            return Check("ray", "fail", error.problem, STOP_COMMAND)
        where = f"local cluster at {local.address}" if local else "no address: verbs start their own Ray"
        return Check("ray", "ok", where)
    if address.startswith(("http://", "https://")):
        try:
            require_dashboard(address)
        except ClusterUnreachableError as error:
            return Check("ray", "fail", error.problem, error.next_step)
        return Check("ray", "ok", f"the dashboard at {address} answers")
    if address == "auto":
        return Check("ray", "ok", "auto: Ray looks for a cluster of this machine")
    answers = tcp_answers(*host_and_port(address, 6379))
    found = f"{address} accepts {'connections' if answers else 'no connection'}"
    return verdict("ray", answers, found, "correct or unset RAY_ADDRESS")


def check_tracking(uri: str | None) -> Check:
    """Whether the MLflow tracking store answers."""
    if not uri:
        return Check("tracking", "ok", "SQLite in the runs directory")
    shown, problem = without_credentials(uri), _tracking_problem(uri)
    found = f"{shown} answers" if problem is None else f"{shown}: {problem}"
    remedy = "start the server, or unset MLFLOW_TRACKING_URI to use SQLite"
    return verdict("tracking", problem is None, found, remedy)


def _tracking_problem(uri: str) -> str | None:
    """Why a tracking store cannot be used; None when it answers."""
    parts = urlsplit(uri)
    kind = parts.scheme.partition("+")[0]
    if kind in ("http", "https"):
        try:
            status, _ = http_get(f"{uri.rstrip('/')}/health")
        except OSError as error:
            return str(getattr(error, "reason", None) or error)
        return None if status in (200, 401, 403) else f"its /health says HTTP status {status}"
    if kind == "sqlite":
        return _sqlite_problem(Path(unquote(uri.partition(":///")[2])))
    if kind in _TRACKING_PORTS:
        host, port = host_and_port(uri, _TRACKING_PORTS[kind])
        return None if tcp_answers(host, port) else f"{host}:{port} accepts no connection"
    return None


def _sqlite_problem(path: Path) -> str | None:
    if not path.exists():
        place = existing_place(path.parent)
        return None if os.access(place, os.W_OK) else f"{place} is not writable"
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2)
        ) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None


def existing_place(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    path = directory.resolve()
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())
