"""Checks of services in the network: Ray and the tracking store."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.checks.machine import Check, existing_place
from cluster.connecting import host_and_port, http_get, require_dashboard, tcp_answers
from cluster.local_cluster import STOP_COMMAND, find_local_cluster

_TRACKING_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


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
    host, port = host_and_port(address, 6379)
    if tcp_answers(host, port):
        return Check("ray", "ok", f"{address} accepts connections")
    return Check("ray", "fail", f"{address} accepts no connection", "correct or unset RAY_ADDRESS")


def check_tracking(uri: str | None) -> Check:
    """Whether the MLflow tracking store answers."""
    if not uri:
        return Check("tracking", "ok", "SQLite in the runs directory")
    shown = without_credentials(uri)
    problem = _tracking_problem(uri)
    if problem is None:
        return Check("tracking", "ok", f"{shown} answers")
    return Check(
        "tracking",
        "fail",
        f"{shown}: {problem}",
        "start the server, or unset MLFLOW_TRACKING_URI to use SQLite",
    )


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
