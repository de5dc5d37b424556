"""Checks of this machine: each finds its fault, names the remedy, and leaves nothing behind."""

import json
import sqlite3
from functools import partial
from http.server import SimpleHTTPRequestHandler
from unittest.mock import Mock

import psutil
import pytest
from packaging.requirements import Requirement

from cluster import node_load
from cluster.checks import machine, nodes
from cluster.checks.machine import Check, Places, run_checks
from cluster.local_cluster import STATE_VARIABLE
from tests.pipeline.command import invoke
from tests.surroundings import serving


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "no-cluster.json"))


@pytest.fixture
def http_server(tmp_path):
    (tmp_path / "health").touch()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving(handler) as host:
        yield f"http://{host}"


def test_all_checks_come_to_an_end_and_leave_nothing_behind(tmp_path):
    runs = tmp_path / "work" / "runs"
    runs.parent.mkdir()
    checks = run_checks(Places(runs, tmp_path, "http://127.0.0.1:1", None))
    assert list(runs.parent.iterdir()) == []
    assert len({check.name for check in checks}) == len(checks) >= 12
    assert all(check.remedy for check in checks if check.status == "fail")
    assert {check.name: check.status for check in checks}["ray"] == "fail"


def test_check_that_breaks_is_a_finding_and_does_not_end_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "check_memory", Mock(side_effect=OSError("no such device")))
    checks = {check.name: check for check in run_checks(Places(tmp_path, None, None, None))}
    assert checks["memory"].status == "warn"
    assert "no such device" in checks["memory"].found
    assert "tracking" in checks


def test_missing_and_old_packages_are_named_with_what_is_needed(monkeypatch):
    check = machine.check_packages([Requirement("no-such-package"), Requirement("numpy>=999")])
    assert check.status == "fail"
    assert "no-such-package is missing" in check.found
    assert "needs >=999" in check.found
    # In a clone by its project file.
    monkeypatch.setattr(machine.metadata, "requires", lambda _: [])
    assert machine.check_packages().status == "ok"


def test_few_open_files_and_little_space_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1024, 1024))
    assert machine.check_open_files().status == "warn"
    usage = machine.shutil.disk_usage(tmp_path)._replace(free=64 * 1024**2)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    assert machine.check_disk("runs disk", tmp_path / "not" / "yet" / "there").status == "fail"
    assert machine.check_shared_memory(tmp_path).status == "warn"


def test_directory_that_cannot_commit_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "replace", Mock(side_effect=PermissionError("read-only file system")))
    check = machine.check_durable_writes(tmp_path)
    assert (check.status, list(tmp_path.iterdir())) == ("fail", [])
    assert "read-only" in check.found


def test_tracking_stores_that_answer_and_that_do_not(tmp_path, http_server):
    sqlite3.connect(tmp_path / "good.db").close()
    (tmp_path / "bad.db").write_bytes(b"this is no database" * 100)
    for uri, status in {
        None: "ok",
        http_server: "ok",
        f"{http_server}/elsewhere": "fail",
        "http://127.0.0.1:1": "fail",
        "postgresql://me:secret@127.0.0.1:1/db": "fail",
        f"sqlite:///{tmp_path}/good.db": "ok",
        f"sqlite:///{tmp_path}/bad.db": "fail",
        f"sqlite:///{tmp_path}/new/mlflow.db": "ok",
    }.items():
        check = machine.check_tracking(uri)
        assert check.status == status, uri
        assert "secret" not in check.found


def test_a_cluster_that_does_not_answer_fails(http_server):
    addresses = [http_server.removeprefix("http://"), http_server, "127.0.0.1:1"]
    assert [machine.check_ray(address).status for address in addresses] == ["ok", "fail", "fail"]


def test_the_verb_ends_with_1_when_one_node_fails(monkeypatch):
    report = nodes.NodeReport("other", [Check("clock", "fail", "an hour ahead")])
    monkeypatch.setattr(machine, "run_checks", lambda places: [])
    monkeypatch.setattr(nodes, "check_nodes", lambda address, places, num_nodes: [report])
    done = invoke("doctor", "--address", "head:6379", "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["nodes"][0]["status"]) == (1, False, "fail")


def test_memory_counts_the_limit_of_the_container_where_it_has_one(tmp_path, monkeypatch):
    monkeypatch.setattr(node_load, "CGROUP", tmp_path)
    for limit in (None, "max", 1 << 60):
        if limit is not None:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert node_load.memory().total == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text(f"{2 * 1024**3}\n")
    (tmp_path / "memory.current").write_text(f"{1024**3}\n")
    check = machine.check_memory()
    assert (check.status, check.found) == ("warn", "1.0 GiB available of 2.0 GiB")
    (tmp_path / "memory.current").write_text(f"{3 * 1024**3}\n")
    assert node_load.memory() == (2 * 1024**3, 0)
