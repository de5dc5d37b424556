"""Deduplication on Ray: the result is that of one process, with any number of workers and after a kill."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.runtime import ray_runtime
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import dedup, workspace, write_documents
from tests.data_prep.dedup.test_dedup_stage import FULL, TEXTS, split

ROOT = Path(__file__).resolve().parents[3]
SHARDS = split(TEXTS, [15, 30, 31, 60])
KILLED = """
import os, signal, sys
from pathlib import Path

from cluster import shards
from cluster.artefacts.manifest import read_manifest
from cluster.runtime import ray_runtime
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import workspace
from tests.data_prep.dedup.test_dedup_stage import FULL

add, kill_after, seen = shards._Tally.add, int(sys.argv[2]), []

def add_and_die(tally, record):
    add(tally, record)
    seen.append(record)
    if len(seen) == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

shards._Tally.add = add_and_die
out = Path(sys.argv[1])
with ray_runtime("local", num_cpus=1):
    deduplicate(workspace(out, 5, FULL), read_manifest(out / "documents"))
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The fingerprint of a deduplication in one process, without Ray."""
    return dedup(tmp_path_factory.mktemp("expected") / "out", SHARDS, FULL).fingerprint


@pytest.fixture(scope="module")
def cluster():
    with ray_runtime("local", num_cpus=2):
        yield


def test_killed_between_steps_or_within_one_it_ends_the_same(expected, cluster, tmp_path):
    documents = write_documents(tmp_path / "out", SHARDS)
    # In the buckets of near-duplicates: hashes and repeats of ids and documents are made by then.
    in_buckets = 2 * (5 + 1) + 2
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(in_buckets)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert process.wait() == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    work = tmp_path / "out" / "work"
    (partial,) = work.glob(".near-buckets.*.partial")
    finished = {
        record.entry.path: (partial / record.entry.path).stat().st_mtime_ns
        for record in SHARD_RECORDS.read_all(partial)
    }
    assert 2 <= len(finished) < len(SHARDS)
    job = workspace(tmp_path / "out", len(SHARDS), FULL)
    assert deduplicate(job, documents).fingerprint == expected
    assert {name: (work / "near-buckets" / name).stat().st_mtime_ns for name in finished} == finished
    assert deduplicate(job, documents).fingerprint == expected
