"""Ends in good order: SIGTERM asks, a second one or the end of the grace time ends; on nodes that leave,
verbs save before Ray is told to end, workers outlive the head, and groups move."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray.job_submission import JobStatus

from cluster import drain, group, jobs, signals
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.group import (
    GroupSize,
    choose_workers,
    free_workers,
    largest_fitting,
    reason_to_grow,
)
from cluster.ray_internals import JOB_VARIABLE
from cluster.stopping import REQUEST_NAME, StopFile

VERB = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
"""
SCRIPT = """
import sys, time
from pathlib import Path
from cluster.artefacts.errors import PreemptedError
from cluster.stopping import StopFile, stop_on_sigterm
directory, grace_s, obeys = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "True"
try:
    with stop_on_sigterm(directory, grace_s=grace_s, next_step="type this") as request:
        worker = StopFile(directory, poll_s=0.01)
        assert not worker.requested()
        print("ready", flush=True)
        while not (worker.requested() and obeys):
            time.sleep(0.01)
        print("saved;", worker.reason, flush=True)
except PreemptedError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""
DEAF = VERB.replace("SIGTERM, save", "SIGTERM, signal.SIG_IGN")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that print that they are ready; they end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, **options)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_sigterm_lets_the_work_come_to_its_own_end(tmp_path: Path, start: Any):
    process = start("-c", SCRIPT, str(tmp_path), "60", "True")
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 0
    assert printed.startswith(f"saved; SIGTERM to process {process.pid} on ")


@pytest.mark.parametrize(
    ("grace_s", "again", "told"), [(60, True, "SIGTERM came again"), (0.2, False, "0.2 s were not enough")]
)
def test_a_second_sigterm_or_the_end_of_the_grace_time_ends_with_75_and_the_next_step(
    tmp_path, start, grace_s, again, told
):
    process = start("-c", SCRIPT, str(tmp_path), str(grace_s), "False")
    process.send_signal(signal.SIGTERM)
    if again:
        while not (tmp_path / REQUEST_NAME).exists():
            time.sleep(0.01)
        time.sleep(signals.SAME_S)
        process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 75
    assert told in printed
    assert "Next: type this" in printed


def test_a_request_of_an_earlier_attempt_is_taken_back(tmp_path: Path, start: Any):
    StopFile(tmp_path).request("yesterday")
    start("-c", SCRIPT, str(tmp_path), "60", "True")


def test_the_file_system_is_asked_once_per_poll_and_the_first_reason_stays(tmp_path: Path):
    seldom, often = StopFile(tmp_path, poll_s=3600.0), StopFile(tmp_path, poll_s=0.0)
    assert not seldom.requested()
    for reason in ("the first", "the second"):
        StopFile(tmp_path).request(reason)
    assert (often.requested(), seldom.requested(), often.reason) == (True, False, "the first")


@pytest.mark.parametrize("contents", [b"", b"{", b"[]"])
def test_a_request_that_cannot_be_read_is_a_request(tmp_path: Path, contents: bytes):
    (tmp_path / REQUEST_NAME).write_bytes(contents)
    request = StopFile(tmp_path)
    assert (request.requested(), request.reason) == (True, "")


def test_verbs_are_ended_and_waited_for_and_no_other_process(tmp_path: Path, start: Any):
    (tmp_path / "cloze").write_text(VERB)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").touch()
    (tmp_path / "pipeline" / "cli.py").write_text(VERB)
    script = start(str(tmp_path / "cloze"), "pretrain", "x.yaml")
    module = start("-m", "pipeline.cli", "pretrain", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    other = start("-c", VERB, "cloze")
    started = [psutil.Process(process.pid) for process in (script, module, other)]
    assert drain.end_verbs(started, timeout_s=60) == []
    assert other.poll() is None
    assert [verb.stdout.read() for verb in (script, module)] == ["saved\n"] * 2


def test_jobs_elsewhere_are_stopped_while_verbs_here_still_save_and_no_verb_is_asked_twice(
    tmp_path: Path, monkeypatch, start: Any
):
    (tmp_path / "cloze").write_text(DEAF)
    config = json.dumps({"metadata": {"job_submission_id": "here"}})
    slow = start(str(tmp_path / "cloze"), env={JOB_VARIABLE: config})
    refusals, asked = [ClusterUnreachableError("busy")], []
    running = {"here": "RUNNING", "elsewhere": "RUNNING", "over": "SUCCEEDED"}

    def list_jobs(_):
        if refusals:
            raise refusals.pop()
        return [SimpleNamespace(submission_id=name, status=JobStatus(running[name])) for name in running]

    assert drain.end_verbs([psutil.Process(slow.pid)], timeout_s=0.1) == [slow.pid]
    monkeypatch.setattr(drain, "POLL_S", 0.05)
    monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process(slow.pid)])
    monkeypatch.setattr(jobs, "connect", lambda _: None)
    monkeypatch.setattr(jobs, "list_jobs", list_jobs)
    monkeypatch.setattr(jobs, "ask_to_stop", lambda _, job: asked.append(job))
    monkeypatch.setattr(sys, "argv", ["drain", "head", "0.5"])
    assert drain.main() == 1
    assert asked == ["elsewhere"]


def test_a_worker_stays_as_long_as_its_head():
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert not drain.outlive_head(address, timeout_s=0)
        closing = threading.Timer(0.5, lambda: head.shutdown(socket.SHUT_RDWR) or head.close())
        closing.start()
        assert drain.outlive_head(address, timeout_s=60)


FIXED = GroupSize((4,), cpus_per_worker=2, gpus_per_worker=0)
ELASTIC = GroupSize((4, 2, 1), cpus_per_worker=2, gpus_per_worker=0)
ON_GPUS = GroupSize((4, 2, 1), cpus_per_worker=2, gpus_per_worker=1)


def cluster_of(
    monkeypatch: pytest.MonkeyPatch, free: Mapping[str, Mapping[str, float]], *drained: str
) -> None:
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2"}
    nodes = [{"NodeID": node, "NodeManagerAddress": address} for node, address in addresses.items()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(group, "free_resources_by_node", lambda: free)
    monkeypatch.setattr(group, "draining_nodes", lambda: dict.fromkeys(drained, 0))


@pytest.mark.parametrize(
    ("size", "free", "drained", "expected"),
    [
        (FIXED, {"a": {"CPU": 8.0}}, (), 4),
        # A worker takes all its processors from one node.
        (FIXED, {"a": {"CPU": 3.0}, "b": {"CPU": 3.9}}, (), 2),
        (FIXED, {"a": {"CPU": 8.0}, "b": {"CPU": 4.0}}, ("a",), 2),
        (FIXED, {"a": {"memory": 1e9}, "b": {}}, (), 0),
        (ON_GPUS, {"a": {"CPU": 64.0, "GPU": 2.0}, "b": {"CPU": 2.0, "GPU": 8.0}, "c": {"CPU": 64.0}}, (), 3),
        (FIXED, {}, (), 0),
    ],
)
def test_workers_fit_into_single_nodes_that_stay(monkeypatch, size, free, drained, expected):
    cluster_of(monkeypatch, free, *drained)
    assert free_workers(size) == expected


@pytest.mark.parametrize(
    ("size", "workers", "free", "drained", "expected"),
    [
        (FIXED, 4, {"b": {"CPU": 64.0}}, (), None),
        (ELASTIC, 1, {"a": {"CPU": 2.0}}, ("elsewhere",), "move: from 1 to 2 workers"),
        (ELASTIC, 2, {"a": {"CPU": 2.0}}, (), None),
        (ELASTIC, 2, {"b": {"CPU": 4.0}}, (), "move: from 2 to 4 workers"),
        (ELASTIC, 2, {"b": {"CPU": 4.0}}, ("b",), None),
        (ELASTIC, 4, {"b": {"CPU": 64.0}}, (), None),
    ],
)
def test_group_moves_to_more_workers_only(monkeypatch, size, workers, free, drained, expected):
    cluster_of(monkeypatch, free, *drained)
    assert reason_to_grow(size, workers) == expected


def test_start_waits_for_room_that_no_longer_changes_unless_the_size_is_fixed(monkeypatch, capsys):
    assert [largest_fitting(ELASTIC, room) for room in (9, 4, 3, 1, 0)] == [4, 4, 2, 1, None]
    free = [0.0, 0.0, 2.0, 4.0, 6.0, 6.0, 64.0]
    clock = SimpleNamespace(sleep=lambda seconds: free.pop(0), monotonic=time.monotonic)
    monkeypatch.setattr(group, "time", clock)
    monkeypatch.setattr(group, "free_resources_by_node", lambda: {"a": {"CPU": free[0]}})
    monkeypatch.setattr(group, "draining_nodes", dict)
    assert choose_workers(FIXED) == 4
    assert choose_workers(ELASTIC) == 2
    assert free == [6.0, 64.0]
    assert "waiting for room" in capsys.readouterr().err
