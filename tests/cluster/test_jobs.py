"""Jobs on a real local Ray cluster: its own ports, its own temporary directory, one for this file."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from cluster import drain, jobs, local_cluster
from cluster.artefacts.errors import ClozeError, ClusterUnreachableError, ReferenceNotFoundError
from cluster.artefacts.owner import find_process
from cluster.connecting import host_and_port, named_address, named_exactly, tcp_answers
from cluster.jobs import connect
from cluster.local_cluster import resolve_address

ECHO = """
import os
from pathlib import Path
print(sorted(map(str, Path().rglob("*"))), os.environ["GREETING"])
"""
SLEEP = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("taking leave"))
print("awake", flush=True)
time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(local_cluster.STATE_VARIABLE, str(tmp_path_factory.mktemp("state") / "cluster.json"))
        patch.delenv("RAY_ADDRESS", raising=False)
        started = local_cluster.start_local_cluster(num_cpus=2)
        family = psutil.Process(started.pid).children(recursive=True)
        try:
            yield started
        finally:
            assert local_cluster.stop_local_cluster() == started
        assert find_process(started.pid, started.started_s) is None
        assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        assert not Path(started.temp_dir).exists()


@pytest.fixture(scope="module")
def client(cluster):
    return connect(cluster.address)


def addresses_of(processes: list[psutil.Process]) -> set[str]:
    """Where processes listen."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            sockets = process.net_connections(kind="inet")
            found |= {one.laddr.ip.removeprefix("::ffff:") for one in sockets if one.status == "LISTEN"}
    return found


REFUSED = """
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.runtime import ray_runtime
try:
    with ray_runtime("127.0.0.1:{port}"):
        print("entered")
except ClusterUnreachableError as error:
    print(error)
"""


def test_a_cluster_that_refuses_the_token_is_not_reported_as_missing(cluster):
    (server,) = (
        each for each in psutil.Process(cluster.pid).children(recursive=True) if each.name() == "gcs_server"
    )
    (port,) = {each.laddr.port for each in server.net_connections() if each.status == psutil.CONN_LISTEN}
    # One try, instead of Ray's twenty.
    environment = os.environ | {
        "RAY_NUM_REDIS_GET_RETRIES": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "x",
    }
    done = subprocess.run(
        [sys.executable, "-c", REFUSED.format(port=port)], env=environment, capture_output=True, text=True
    )
    assert "export RAY_AUTH_MODE=token" in done.stdout
    assert "InvalidAuthToken" not in done.stderr, "Ray's own lines are kept back"


def submit(client: JobSubmissionClient, name: str, program: str, **options: Any) -> bool:
    shipped: dict[str, Any] = {"root": Path(jobs.__file__).parents[1], "code": ("cluster",)}
    settings = {"metadata": {"verb": "test"}, "environment": {}, "stop_grace_s": 15}
    command = (sys.executable, "-c", program)
    return jobs.submit(client, name, command, **(shipped | settings | options))


IN_WORKER = """
import os, ray
ray.init(log_to_driver=False)
print("worker in", ray.get(ray.remote(lambda: os.getcwd()).remote()))
"""


def test_workers_of_a_job_start_where_it_was_submitted_and_run_the_shipped_code(
    client, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "__init__.py").write_text("raise ImportError('not the shipped code')")
    assert submit(client, "directory", IN_WORKER)
    shown: list[str] = []
    assert jobs.follow_logs(client, "directory", shown.append).status == "SUCCEEDED", "".join(shown)
    assert f"worker in {tmp_path}" in "".join(shown)


def test_local_cluster_is_found_again_and_closed_to_other_users_and_other_machines(cluster, monkeypatch):
    assert local_cluster.find_local_cluster() == local_cluster.start_local_cluster() == cluster
    assert resolve_address(None) == cluster.address
    directory = Path(cluster.temp_dir)
    paths = (directory.parent, directory, directory / "auth_token")
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]
    assert {path.stat().st_uid for path in paths} == {os.getuid()}
    holder = psutil.Process(cluster.pid)
    assert addresses_of([holder, *holder.children(recursive=True)]) == {"127.0.0.1"}
    monkeypatch.setattr(local_cluster.LocalCluster, "headers", {})
    with pytest.raises(ClusterUnreachableError, match="refuses access"):
        connect(cluster.address)


def test_the_address_auto_is_resolved_and_a_dashboard_that_says_nothing_is_given_up(cluster, monkeypatch):
    host, port = host_and_port(named_exactly("auto"), 0)
    assert tcp_answers(host, port)
    monkeypatch.setattr(jobs, "ANSWER_S", 0.1)
    silent = SimpleNamespace(get_address=lambda: cluster.address, list_jobs=lambda: time.sleep(60))
    with pytest.raises(ClusterUnreachableError):
        jobs.list_jobs(cast(Any, silent))


def test_job_runs_with_its_code_and_nothing_else_its_environment_and_metadata(client, tmp_path):
    left_out = (".env", "data.txt", "runs/package/module.py", "other/package/module.py", "package/.env")
    for name in (*left_out, "package/__pycache__/module.pyc", "package/runs/module.py", "one.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    shipped = {"root": tmp_path, "code": ("package", "one.toml")}
    assert submit(client, "echo", ECHO, environment={"GREETING": "good morning"}, **shipped)
    shown: list[str] = []
    job = jobs.follow_logs(client, "echo", shown.append)
    assert (job.status, job.driver_exit_code) == ("SUCCEEDED", 0)
    assert (job.metadata or {})["verb"] == "test"
    files = "['one.toml', 'package', 'package/runs', 'package/runs/module.py'] good morning"
    assert files in "".join(shown)
    assert files in jobs.read_logs(client, "echo")
    assert 0 < (job.start_time or 0) < (job.end_time or 0)


@pytest.mark.parametrize("by", ["stop", "the end of the head"])
def test_running_job_is_submitted_once_and_stopped_gracefully(client, cluster, by):
    name = f"nap-{len(by)}"
    assert submit(client, name, SLEEP)
    assert not submit(client, name, SLEEP)
    while "awake" not in jobs.read_logs(client, name):
        time.sleep(0.1)
    if by == "stop":
        assert jobs.stop(client, name)[1]
    else:
        assert drain.stop_jobs(cluster.address, timeout_s=60) == []
    assert jobs.find_job(client, name).status == "STOPPED"
    assert "taking leave" in jobs.read_logs(client, name)
    assert not jobs.stop(client, name)[1]


def test_a_cluster_that_cannot_take_a_job_yet_is_asked_again(client, monkeypatch):
    refusals, submit_job = [2], client.submit_job

    def busy(**options: Any) -> str:
        if refusals[0]:
            refusals[0] -= 1
            raise RuntimeError("status code 500: No available agent to submit job, please try again later.")
        return submit_job(**options)

    monkeypatch.setattr(client, "submit_job", busy)
    assert submit(client, "patient", "pass")
    jobs.stop(client, "patient")
    refusals[0] = 1000
    with pytest.raises(ClozeError, match="No available agent"):
        submit(client, "in-vain", "pass")
    assert refusals[0] > 900


def test_unknown_job_names_the_nearest(client):
    assert submit(client, "cloze-doctor-1234567890", "pass")
    with pytest.raises(ReferenceNotFoundError, match="cloze-doctor-1234567890"):
        jobs.find_job(client, "cloze-doctor-1234567899")


@pytest.mark.parametrize(
    ("scheme", "listens"), [("http://", False), ("", False), ("ray://", False), ("http://", True)]
)
def test_address_where_nothing_listens_or_answers_is_unreachable(scheme, listens):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        with pytest.raises(ClusterUnreachableError) as caught:
            connect(f"{scheme}127.0.0.1:{silent.getsockname()[1]}")
    assert listens or "8265" in caught.value.next_step


def test_without_address_and_cluster_the_error_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv(local_cluster.STATE_VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(ClusterUnreachableError) as caught:
        resolve_address(None)
    assert "cloze submit -- VERB" in caught.value.next_step


def test_given_address_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert named_address(None) == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://10.0.0.2:8265")
    assert named_address(None) == "http://10.0.0.2:8265"
    assert named_address("http://10.0.0.3:8265") == "http://10.0.0.3:8265"
    assert named_address("local") is None


def test_state_of_a_dead_cluster_is_noticed_and_forgotten(tmp_path, monkeypatch, caplog):
    state = tmp_path / "cluster.json"
    monkeypatch.setenv(local_cluster.STATE_VARIABLE, str(state))
    # This very process, at another time: a process id that was used again.
    dead = {"address": "http://127.0.0.1:1", "pid": os.getpid(), "started_s": 1.0, "temp_dir": str(tmp_path)}
    state.write_text(json.dumps(dead))
    assert local_cluster.find_local_cluster() is None
    assert "is gone" in caplog.text
    assert not state.exists()
    assert local_cluster.stop_local_cluster() is None
    assert tmp_path.exists()
