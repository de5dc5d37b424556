"""The end of a pod: verbs save before Ray is told to end, and workers stay until the head is gone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from cluster import drain

VERB = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
"""


def start(*command: str, **options) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_verbs_are_ended_and_waited_for_and_no_other_process(tmp_path: Path):
    (tmp_path / "cloze").write_text(VERB)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").touch()
    (tmp_path / "pipeline" / "cli.py").write_text(VERB)
    script = start(sys.executable, str(tmp_path / "cloze"), "pretrain", "x.yaml")
    module = start(
        sys.executable, "-m", "pipeline.cli", "pretrain", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
    other = start(sys.executable, "-c", VERB, "cloze")
    try:
        started = [psutil.Process(process.pid) for process in (script, module, other)]
        assert drain.end_verbs(started, timeout_s=60) == []
        assert other.poll() is None
        for verb in (script, module):
            assert verb.stdout is not None
            assert verb.stdout.read() == "saved\n"
    finally:
        for process in (script, module, other):
            process.kill()
            process.wait()


def test_a_verb_that_takes_longer_is_named(tmp_path: Path):
    (tmp_path / "cloze").write_text(VERB.replace("SIGTERM, save", "SIGTERM, signal.SIG_IGN"))
    slow = start(sys.executable, str(tmp_path / "cloze"))
    try:
        assert drain.end_verbs([psutil.Process(slow.pid)], timeout_s=0.1) == [slow.pid]
    finally:
        slow.kill()
        slow.wait()


def test_a_worker_stays_as_long_as_its_head():
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert not drain.outlive_head(address, timeout_s=0)
        closing = threading.Timer(0.5, lambda: head.shutdown(socket.SHUT_RDWR) or head.close())
        closing.start()
        assert drain.outlive_head(address, timeout_s=60)
