"""What logging and tracking take from a training step: with a live server, a dead one, and without any.

A step lasts 10 ms here, ten times as often as is usual. What is measured are processor times, which a busy machine does
not change: `calls` is the median of a step's logging calls on the training thread; `threads` what other threads of the
process compute per step, all of it with the interpreter's lock that the training loop needs; `beside` what processes
beside it compute per step, on another core.

Peers: MLflow's own ways of logging a step's metrics, at once and from its background threads. At once, a call waits for
the server too: `waits` is its median by the clock.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_to_mlflow
from pipeline.run.tracking import connect
from tests.pipeline.ranks import free_port

STEPS = 500
START_S = 4.0
STEP_S = 0.010
USUAL_STEP_S = 0.100
DEAD = "http://127.0.0.1:9"
METRICS = (
    "loss",
    "mlm/loss",
    "mlm/accuracy",
    "lr",
    "grad_norm",
    "predicted_tokens",
    "tokens_per_s",
    "step_s",
    "data_wait_share",
)

Logging = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """The outcome for one way of logging, in microseconds per step."""

    what: str
    calls_us: float
    waits_us: float
    threads_us: float
    beside_us: float

    def __str__(self) -> str:
        share = (max(self.calls_us, self.waits_us) + self.threads_us) / 1e6 / USUAL_STEP_S
        return (
            f"tracking, {self.what}: calls {self.calls_us:,.0f} us (waits {self.waits_us:,.0f} us), other threads "
            f"{self.threads_us:,.0f} us, beside {self.beside_us:,.0f} us; at most {share:.2%} of a step of "
            f"{USUAL_STEP_S * 1e3:.0f} ms"
        )


def run() -> Iterator[Cost]:
    """The cost of each way."""
    directory = Path(tempfile.mkdtemp(prefix="tracking-"))
    with _server(directory) as uri:
        ways: dict[str, Callable[[Path], AbstractContextManager[Logging]]] = {
            "log alone": _log_alone,
            "log and a live server": partial(_sender, uri=uri, answers=True),
            "log and a dead server": partial(_sender, uri=uri, answers=False),
            "MLflow's log_batch, live server": partial(_mlflow, uri=uri, synchronous=True),
            "MLflow's log_batch in the background, live server": partial(_mlflow, uri=uri, synchronous=False),
        }
        for what, way in ways.items():
            yield _cost(what, way, Path(tempfile.mkdtemp(dir=directory)))


def _cost(what: str, way: Callable[[Path], AbstractContextManager[Logging]], directory: Path) -> Cost:
    calls: list[float] = []
    waits: list[float] = []
    with way(directory) as log:
        before, beside = time.process_time() - time.thread_time(), _beside_s()
        for step in range(1, STEPS + 1):
            time.sleep(STEP_S)
            computed, started = time.thread_time(), time.perf_counter()
            log(step)
            calls.append(time.thread_time() - computed)
            waits.append(time.perf_counter() - started)
        threads = time.process_time() - time.thread_time() - before
        beside = _beside_s() - beside
    return Cost(
        what,
        calls_us=statistics.median(calls) * 1e6,
        waits_us=statistics.median(waits) * 1e6,
        threads_us=threads / STEPS * 1e6,
        beside_us=beside / STEPS * 1e6,
    )


def _beside_s() -> float:
    """Processor seconds of the sending process, if there is one."""
    times = [
        each.cpu_times() for each in psutil.Process().children() if "mlflow_sink" in " ".join(each.cmdline())
    ]
    return sum(each.user + each.system for each in times)


@contextmanager
def _log_alone(directory: Path) -> Iterator[Logging]:
    log = RunLog(RunDirectory(directory))
    yield lambda step: (log.write("train", step, _metrics(step)), None)[1]
    log.close()


@contextmanager
def _sender(directory: Path, *, uri: str, answers: bool) -> Iterator[Logging]:
    run_id = _new_run(uri)
    log = RunLog(RunDirectory(directory))
    sender = send_to_mlflow(
        RunDirectory(directory), uri=uri if answers else DEAD, run_id=run_id, model_name="benchmark"
    )
    log.write("train", 0, {"started": 0.0})
    # The process has imported MLflow when the first line is sent, or has failed to be.
    time.sleep(START_S)

    def log_step(step: int) -> None:
        log.write("train", step, _metrics(step))

    yield log_step
    log.close()
    sender.close()


@contextmanager
def _mlflow(directory: Path, *, uri: str, synchronous: bool) -> Iterator[Logging]:
    from mlflow.entities import Metric

    del directory
    client, run_id = connect(uri), _new_run(uri)
    pending: list[Any] = []

    def log_step(step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in _metrics(step).items()]
        pending.append(client.log_batch(run_id, metrics=metrics, synchronous=synchronous))

    yield log_step
    for operations in pending:
        if operations is not None:
            operations.wait()


def _metrics(step: int) -> dict[str, float]:
    return {name: 1.0 / step + number for number, name in enumerate(METRICS)}


def _new_run(uri: str) -> str:
    return connect(uri).create_run("0").info.run_id


@contextmanager
def _server(directory: Path) -> Iterator[str]:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{directory / 'server.db'}"]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _answers(uri):
            time.sleep(0.2)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _answers(uri: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=1) as answer:
        return answer.status == 200
    return False
