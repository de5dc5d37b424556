"""Ray as drivers meet it: an address without a cluster, processes of Ray that die, and private names that are used."""

import mmap
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name

import pytest
import ray

from cluster import connecting, ray_internals
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.connecting import connect_to_cluster

PROGRAM = """
import sys
import psutil
from cluster import node_watch, signals
signals.answer_signals("cloze data prepare x.yaml")
# Ray itself waits for a minute.
node_watch.RECONNECT_S = 20.0
from cluster.runtime import ray_runtime
with ray_runtime("local", num_cpus=1):
    import ray
    (node,) = (child for child in psutil.Process().children() if child.name() == sys.argv[1])
    waiting = ray.remote(lambda: __import__("time").sleep(3600)).remote()
    node.kill()
    ray.get(waiting)
"""
PRIVATE_NAMES = (
    "ray._private.utils.set_sigterm_handler",
    "ray._private.ray_constants.ENABLE_RAY_CLUSTER",
    "ray._private.worker._global_node",
    "ray._private.node.Node.raylet_socket_name",
    "ray._private.node.Node.kill_all_processes",
    "ray._private.services.get_ray_address_from_environment",
    "ray.dashboard.utils.get_address_for_submission_client",
    "ray.job_submission.JobSubmissionClient._do_request",
    "ray._private.state.state",
    "ray._private.state.GlobalState.get_draining_nodes",
    "ray._private.state.available_resources_per_node",
    "ray.exceptions.RayActorError.preempted",
)
"""Private or undocumented names of Ray that cloze touches."""
CONSTANTS = {
    "ray._private.runtime_env.constants.RAY_JOB_CONFIG_JSON_ENV_VAR": ray_internals.JOB_VARIABLE,
    "ray._private.ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR": ray_internals.LOOPBACK_VARIABLE,
}
"""Environment variables, by the names that Ray's own files have for them."""


@pytest.mark.parametrize("speaks", [False, True], ids=["nothing listens", "speaks something else"])
def test_an_address_without_a_cluster_is_refused(speaks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connecting, "TIMEOUT_S", 1.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if speaks:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            server.socket.close()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ClusterUnreachableError, match=address):
            connect_to_cluster(address)
        if speaks:
            server.shutdown()


@pytest.mark.parametrize(
    ("process", "code", "message"),
    [
        ("raylet", 30, "Ray's node process (raylet) on this machine died"),
        ("gcs_server", 31, "has not answered for 15 s"),
    ],
    ids=["node", "head"],
)
def test_a_process_of_ray_that_dies_is_an_exit_code_and_one_message(process: str, code: int, message: str):
    done = subprocess.run([sys.executable, "-c", PROGRAM, process], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    said = done.stderr.partition(message)
    assert said[1], done.stderr
    assert "Next: cloze data prepare x.yaml" in said[2]
    assert not [word for word in ("state-dump", "gcs_rpc_client") if word in done.stderr]


def test_no_private_name_and_no_environment_variable_is_gone_or_renamed():
    for name in PRIVATE_NAMES:
        resolve_name(name)
    assert {name: resolve_name(name) for name in CONSTANTS} == CONSTANTS
    setting = ray_internals.RECONNECT_VARIABLE.removeprefix("RAY_").encode()
    with (Path(ray.__file__).parent / "_raylet.so").open("rb") as file:
        assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(setting) >= 0
