"""The same data whatever happens on the way: any number of workers, killed in the middle or not."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.runtime import ray_runtime
from data_prep.job import prepare

KILLED = """
import os, signal, sys
from pathlib import Path

from cluster import shards
from cluster.runtime import ray_runtime
from data_prep.job import prepare
from tests.data_prep.conftest import small_config

add, kill_after = shards._Tally.add, int(sys.argv[3])
seen = []

def add_and_die(tally, record):
    add(tally, record)
    if record.entry.path.startswith("data-"):
        seen.append(record.entry.path)
    if len(seen) == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

shards._Tally.add = add_and_die
with ray_runtime("local", num_cpus=1):
    prepare(small_config(Path(sys.argv[1]), Path(sys.argv[2])))
"""
NO_CLUSTER = """
import sys
from pathlib import Path

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.runtime import ray_on_demand
from data_prep.job import prepare
from tests.data_prep.conftest import small_config

corpus, out, other = map(Path, sys.argv[1:])
with ray_on_demand("127.0.0.1:1"):
    print(prepare(small_config(corpus, out)).fingerprint)
    try:
        prepare(small_config(corpus, other))
    except ClusterUnreachableError as error:
        print(error.exit_code)
"""
ROOT = Path(__file__).resolve().parents[2]
NUM_SHARDS = 7
NUM_KEPT_SHARDS = 3
"""Token shards that are finished when the preparation is killed."""


@pytest.fixture(scope="module")
def reference(finished):
    """The fingerprint of an undisturbed preparation with two workers."""
    return finished.fingerprint


@pytest.fixture(scope="module")
def three_workers(reference, one_worker):
    """A cluster of three workers, started after the others are gone."""
    with ray_runtime("local", num_cpus=3):
        yield


@pytest.fixture(scope="module")
def one_worker(reference, configure, tmp_path_factory):
    """The fingerprint of a preparation with one worker."""
    with ray_runtime("local", num_cpus=1):
        return prepare(configure(tmp_path_factory.mktemp("one") / "out")).fingerprint


def test_fingerprint_is_the_same_with_one_two_and_three_workers(
    reference, one_worker, three_workers, configure, tmp_path
):
    assert prepare(configure(tmp_path / "out")).fingerprint == one_worker == reference


def test_killed_preparation_redoes_only_unfinished_shards_and_ends_the_same(
    reference, three_workers, configure, corpus, tmp_path
):
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(corpus), str(out), str(NUM_KEPT_SHARDS)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert process.wait() == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "tokens").exists()
    (partial,) = out.glob(".tokens.*.partial")
    finished = {
        path.stem: (partial / path.stem).stat() for path in (partial / "shard-records").glob("*.json")
    }
    assert NUM_KEPT_SHARDS <= len(finished) < NUM_SHARDS
    earlier = {
        path: path.stat().st_ino for stage in ("documents", "dedup") for path in (out / stage).iterdir()
    }
    assert prepare(configure(out)).fingerprint == reference
    for name, before in finished.items():
        after = (out / "tokens" / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert all(path.stat().st_ino == inode for path, inode in earlier.items())
    assert not partial.exists()


def test_finished_data_is_confirmed_without_a_cluster_and_new_data_asks_for_it(finished, corpus, tmp_path):
    command = [sys.executable, "-c", NO_CLUSTER, str(corpus), str(finished.out), str(tmp_path / "other")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [finished.fingerprint, str(ClusterUnreachableError.exit_code)]
