"""The situations of the pages about getting a cluster. Schedulers and hosts are stand-ins on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pipeline.process_group import forked_environment
from tests.runbooks.materials import ROOT, Situation
from tests.surroundings import plain_environment

STAND_INS = Path(__file__).parent / "stand_ins"


@pytest.fixture
def scratch() -> Iterator[str]:
    """A short path: Ray's sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as place:
        yield place


@pytest.fixture
def install_on_slurm(prepared: Path, tmp_path: Path, scratch: str) -> Iterator[Situation]:
    """Two nodes, which are this machine; the job is requeued once, as at the end of its time limit."""
    run = tmp_path / "run.yaml"
    run.write_text(
        f"base: {ROOT}/configs/demo/practice-pretrain.yaml\nruns_dir: runs\n"
        f"data: {{stores: [{{path: {prepared}/tokens}}]}}\n"
    )
    environment = _with_stand_ins() | {"SLURM_STATE": str(tmp_path / "slurm-state")}
    settings = {
        "ENVIRONMENT": forked_environment(),
        "SHARED": tmp_path,
        "CONFIG": "run.yaml",
        "NODES": 2,
        "CPUS": 1,
    }
    settings |= {"GPUS": 0, "OPTIONS": f"--set scratch={scratch} --set memory_gib_per_node=4"}
    expected = ("nodes of the cluster", "An earlier attempt of job slurm-1", "ended with exit code 75")
    try:
        yield Situation(tmp_path, settings, environment, (*expected, '"event":"finished"'))
    finally:
        if (state := tmp_path / "slurm-state" / "pid").exists():
            os.kill(int(state.read_text()), signal.SIGUSR1)


@pytest.fixture
def install_on_ssh_hosts(tmp_path: Path, scratch: str) -> Iterator[Situation]:
    """A head and one more host, which are both this machine."""
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("", 0))) for _ in range(3)]
        port, dashboard, client = (server.getsockname()[1] for server in servers)
    options = {
        "scratch": scratch,
        "port": port,
        "dashboard_port": dashboard,
        "client_port": client,
        "cpus": 1,
    }
    settings = {
        "ENVIRONMENT": forked_environment(),
        "SHARED": tmp_path,
        "HEAD": "127.0.0.1",
        "WORKERS": "localhost",
    }
    settings |= {"OPTIONS": " ".join(f"--set {name}={value}" for name, value in options.items())}
    settings |= {"DASHBOARD": dashboard}
    environment = _with_stand_ins()
    try:
        yield Situation(tmp_path, settings, environment, ("0 failed", "SUCCEEDED", "worker stopped"))
    finally:
        stop = tmp_path / "hosts" / "stop.sh"
        if stop.exists():
            subprocess.run([stop], env=environment, capture_output=True)


@pytest.fixture
def install_on_kubernetes(tmp_path: Path) -> Situation:
    """A Kubernetes that has the operator; its client checks every object by schema."""
    pytest.importorskip("kubernetes_validate")
    settings = {
        "IMAGE": "registry.example.org/me/cloze:1",
        "CLOZE": ROOT,
        "OUT": tmp_path / "cluster",
        "WORKERS": 2,
    }
    settings |= {"GPUS": 8, "OPTIONS": "--set fault_tolerant_head=true", "VERB": "pretrain run.yaml"}
    expected = (
        "RayCluster/cloze created",
        "RayJob/train created",
        "with 3 keys",
        "NetworkPolicy/cloze-redis created",
    )
    return Situation(tmp_path, settings, _with_stand_ins(), (*expected, "0 failed"))


@pytest.fixture
def install_on_cloud_machines(tmp_path: Path) -> Situation:
    """A launcher that checks the configuration as Ray does, and starts no machine."""
    settings = {
        "IMAGE": "registry.example.org/me/cloze:1",
        "CLOZE": ROOT,
        "OUT": tmp_path / "cluster",
        "WORKERS": 2,
    }
    settings |= {"TYPE": "p4d.24xlarge", "NFS": "fs-1.example.org:/", "OPTIONS": "--set workers.gpus=8"}
    environment = _with_stand_ins() | {"HOME": str(tmp_path)}
    return Situation(tmp_path, settings, environment, ("1 + 2 machines", "0 failed", "removed"))


def _with_stand_ins() -> dict[str, str]:
    """An environment of no cluster, in which the stand-ins are found first."""
    path = os.pathsep.join([str(STAND_INS), str(forked_environment() / "bin"), os.environ["PATH"]])
    return plain_environment() | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
