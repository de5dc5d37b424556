"""The installed Ray has every private name that cloze touches."""

import ast
import mmap
from pathlib import Path
from pkgutil import resolve_name

import pytest
import ray

from cluster import ray_internals

PRIVATE_NAMES = {
    "ray._private.utils.set_sigterm_handler": "replaced in `own_signal_handlers`",
    "ray._private.ray_constants.ENABLE_RAY_CLUSTER": "replaced in `loopback_only`",
    "ray._private.worker._global_node": "read in `shut_down` and `own_raylet_socket`",
    "ray._private.node.Node.raylet_socket_name": "read in `own_raylet_socket`",
    "ray._private.node.Node.kill_all_processes": "replaced in `shut_down`",
    "ray._private.services.get_ray_address_from_environment": "called in `automatic_address`",
    "ray.dashboard.utils.get_address_for_submission_client": "called in `dashboard_of`",
    "ray.job_submission.JobSubmissionClient._do_request": "called in `node_loads`",
    "ray._private.state.state": "read in `draining_nodes`",
    "ray._private.state.GlobalState.get_draining_nodes": "called in `draining_nodes`",
    "ray._private.state.available_resources_per_node": "called in `free_resources_by_node`",
    "ray.exceptions.RayActorError.preempted": "read in group.py; public, but in no documentation",
}
"""Private or undocumented names of Ray that cloze touches, and where."""


CONSTANTS = {
    "ray._private.runtime_env.constants.RAY_JOB_CONFIG_JSON_ENV_VAR": ray_internals.JOB_VARIABLE,
    "ray._private.ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR": ray_internals.LOOPBACK_VARIABLE,
}
"""Environment variables, by the names that Ray's own files have for them."""


def test_no_environment_variable_is_renamed():
    assert {name: resolve_name(name) for name in CONSTANTS} == CONSTANTS
    setting = ray_internals.RECONNECT_VARIABLE.removeprefix("RAY_").encode()
    with (Path(ray.__file__).parent / "_raylet.so").open("rb") as file:
        assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(setting) >= 0


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_no_private_name_is_gone(name: str):
    resolve_name(name)


def test_every_private_name_that_the_file_touches_is_listed():
    touched = set[str]()
    for node in ast.walk(ast.parse(Path(ray_internals.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ray."):
            touched |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            touched.add(f".{node.attr}")
    listed = [f"{name}." for name in PRIVATE_NAMES]
    assert not {one for one in touched if not any(f"{one}." in name for name in listed)}
