"""The end of a pod: verbs save before Ray is told to end, and workers stay until the head is gone."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.job_submission import JobStatus

from cluster import drain, jobs
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.ray_internals import JOB_VARIABLE

VERB = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
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


def test_a_verb_that_takes_longer_is_named(tmp_path: Path, start: Any):
    (tmp_path / "cloze").write_text(DEAF)
    slow = start(str(tmp_path / "cloze"))
    assert drain.end_verbs([psutil.Process(slow.pid)], timeout_s=0.1) == [slow.pid]


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
