"""The local Ray cluster for jobs: outlives the command that started it, is found again, and is stopped on demand.

A small state file holds its address. It has free ports and a private temporary directory, so that it does not disturb
any other Ray on the machine (`ray stop` would end them all), and it accepts only the token in that directory.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil

from cluster.artefacts.errors import ClozeError, ClusterUnreachableError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.owner import born_s, find_process
from cluster.artefacts.private import RAY_NAME, lock, make_private_directory, private_root, require_private
from cluster.connecting import named_address, require_dashboard
from cluster.ray_internals import JOB_VARIABLE, LOOPBACK_VARIABLE

STATE_VARIABLE = "CLOZE_LOCAL_CLUSTER"
"""Environment variable with the path of the state file; default: one under `~/.cache/cloze`."""
STOP_COMMAND = "cloze stop --cluster"
_TEMP_PREFIX = "o-"
_TOKEN_FILE = "auth_token"
_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 20.0
_OBJECT_STORE_BYTES = 512 * 1024**2
_OF_ONE_JOB = ("CLOZE_", "MLFLOW_")
"""Prefixes of the environment variables of one command, which must not leak into the jobs of others."""
_OF_ANOTHER_CLUSTER = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    JOB_VARIABLE,
    "RAY_AUTH_TOKEN",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The contents of the state file."""

    address: str
    """URL of the dashboard, which serves the Job API."""
    pid: int
    """The process that is the ancestor of all others of the cluster."""
    started_s: float
    """When that process began, as `born_s` gives it: process ids are used again, the pair is not."""
    temp_dir: str
    """Holds the token, and Ray's session, sockets and logs. Only its owner may enter it."""

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers with the token, for its dashboard; raises StorageError if others may have changed the token."""
        require_private(Path(self.temp_dir))
        return {"Authorization": f"Bearer {(Path(self.temp_dir) / _TOKEN_FILE).read_text()}"}


def state_file() -> Path:
    """The state file; one per machine, because home directories are shared between machines."""
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen)
    return Path.home() / ".cache" / "cloze" / f"local-cluster-{platform.node()}.json"


def resolve_address(given: str | None) -> str:
    """The given address, one from the environment, or the address of the local cluster.

    Raises:
        ClusterUnreachableError: there is none.
    """
    if named := named_address(given):
        return named
    if local := find_local_cluster():
        return local.address
    raise ClusterUnreachableError(
        "No Ray address was given, and no local cluster runs.",
        next_step="cloze submit -- VERB ... starts one; for another cluster add --address http://HOST:8265",
    )


def find_local_cluster() -> LocalCluster | None:
    """The local cluster if it runs.

    Raises:
        ClusterUnreachableError: its process runs, but it does not answer.
    """
    if (found := _read_state()) is None:
        return None
    try:
        require_dashboard(found.address)
    except ClusterUnreachableError as error:
        raise ClusterUnreachableError(
            f"The local cluster (process {found.pid}) does not answer at {found.address}.",
            next_step=f"{STOP_COMMAND}, then submit again; its logs: {found.temp_dir}",
        ) from error
    return found


def own_cluster_at(address: str) -> LocalCluster | None:
    """The local cluster if this is its address, else None."""
    found = _read_state()
    return found if found and found.address == address.rstrip("/") else None


def start_local_cluster(num_cpus: int | None = None) -> LocalCluster:
    """Start the local cluster unless it runs.

    Args:
        num_cpus: logical CPUs of a cluster that is started; None counts this machine's.

    Raises:
        ClusterUnreachableError: it did not come up; the message has the end of Ray's output.
    """
    with _one_at_a_time():
        return find_local_cluster() or _start(num_cpus)


def stop_local_cluster() -> LocalCluster | None:
    """Stop the local cluster with everything that runs on it; returns it, or None when there was none."""
    with _one_at_a_time():
        found = _read_state()
        if found is not None:
            _terminate(psutil.Process(found.pid))
            temp_dir = Path(found.temp_dir)
            # A state file can be edited: only directories that this module made are removed.
            if temp_dir.name.startswith(_TEMP_PREFIX) and temp_dir.parent == private_root():
                shutil.rmtree(temp_dir, ignore_errors=True)
        state_file().unlink(missing_ok=True)
        return found


def _start(num_cpus: int | None) -> LocalCluster:
    # Not below the home directory: the paths of Ray's sockets may have 107 bytes in all.
    temp_dir = make_private_directory(_TEMP_PREFIX)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        dashboard_port, client_port = (each.getsockname()[1] for each in (one, other))
    address = f"http://127.0.0.1:{dashboard_port}"
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", "--port=0", f"--temp-dir={temp_dir / RAY_NAME}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"),
        *("--dashboard-agent-listen-port=0", f"--ray-client-server-port={client_port}"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--object-store-memory={_OBJECT_STORE_BYTES}"),
        *([f"--num-cpus={num_cpus}"] if num_cpus else []),
    ]
    token = temp_dir / _TOKEN_FILE
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    log = temp_dir / "start.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=temp_dir,
            env=_environment(token),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_it_answers(process, address, log)
        cluster = LocalCluster(address, process.pid, born_s(psutil.Process(process.pid)), str(temp_dir))
        write_durably(state_file(), orjson.dumps(asdict(cluster), option=orjson.OPT_INDENT_2))
    except BaseException:
        if process.poll() is None:
            _terminate(psutil.Process(process.pid))
        raise
    return cluster


def _wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            require_dashboard(address)
            return
        except ClusterUnreachableError:
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                state = "ended at once" if ended else f"did not answer within {_START_TIMEOUT_S:.0f} s"
                raise ClusterUnreachableError(
                    f"The local Ray cluster {state}. Ray's output ({log}):\n{tail}",
                    next_step="cloze doctor, or give the address of another cluster with --address",
                ) from None
        time.sleep(0.3)


def _environment(token: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_ONE_JOB) and name not in _OF_ANOTHER_CLUSTER
    }
    # Tools of the virtual environment are found even when it was not activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    # A driver that reserves no GPU still sees the machine's GPUs, as it does when run without a cluster.
    return kept | {
        "PATH": path,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        LOOPBACK_VARIABLE: "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


def _terminate(holder: psutil.Process) -> None:
    """End a process and all its descendants: politely, then by force."""
    family = [*holder.children(recursive=True), holder]
    holder.terminate()
    _, alive = psutil.wait_procs(family, timeout=_STOP_TIMEOUT_S)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_STOP_TIMEOUT_S)


def _read_state() -> LocalCluster | None:
    """The cluster that runs, whether it answers or not; the state file of a dead one is removed."""
    try:
        found = LocalCluster(**orjson.loads(state_file().read_bytes()))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, TypeError, OSError) as error:
        raise ClozeError(f"{state_file()} cannot be read: {error}", next_step=f"rm {state_file()}") from None
    if find_process(found.pid, found.started_s) is not None:
        return found
    # Its logs stay: they say why it died.
    _log.warning("The earlier local cluster is gone; its logs: %s", found.temp_dir)
    state_file().unlink(missing_ok=True)
    return None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    path = state_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as held:
        lock(held.fileno())
        yield
