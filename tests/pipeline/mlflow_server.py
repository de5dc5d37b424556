"""A real MLflow server that can be killed and started again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.pipeline.process_group import wait_until
from tests.pipeline.ranks import free_port


class Server:
    """`mlflow server` on SQLite, in a process group of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.database = directory / "server.db"
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.database}", "--workers", "1"]
        command += ["--artifacts-destination", str(self.directory / "artifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.directory, start_new_session=True
            )
        wait_until(self._answers, self.process)

    def signal(self, number: signal.Signals) -> None:
        """To every process of the server."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """As a power failure does it."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def metric_rows(self, run_id: str) -> dict[str, list[tuple[int, float]]]:
        """By name, all rows of the database, in the order of the steps."""
        query = "SELECT key, step, value FROM metrics WHERE run_uuid = ? ORDER BY step"
        rows: dict[str, list[tuple[int, float]]] = {}
        with sqlite3.connect(self.database, timeout=30) as database:
            for key, step, value in database.execute(query, (run_id,)):
                rows.setdefault(key, []).append((step, value))
        return rows

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
            return answer.status == 200
        return False
