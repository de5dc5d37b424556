"""The same data whatever happens on the way: any number of workers, killed in the middle or not."""

import subprocess
import sys

import pytest
import ray

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.runtime import ray_runtime
from data_prep.job import prepare
from tests.data_prep.killed import ROOT, kill_after

WORK = """
from data_prep.job import prepare
from tests.data_prep.conftest import small_config
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
NUM_SHARDS = 7
NUM_KEPT_SHARDS = 3
"""Token shards that are finished when the preparation is killed."""


@pytest.fixture(scope="module")
def one_worker(finished, configure, tmp_path_factory):
    """The fingerprint of a preparation with one worker, made when that with two is finished."""
    assert not ray.is_initialized(), "the cluster of three workers is there already"
    with ray_runtime("local", num_cpus=1):
        return prepare(configure(tmp_path_factory.mktemp("one") / "out")).fingerprint


@pytest.fixture(scope="module")
def three_workers(finished):
    """A cluster of three workers, started after that of two is gone."""
    with ray_runtime("local", num_cpus=3):
        yield


def test_fingerprint_is_the_same_with_one_two_and_three_workers(
    finished, one_worker, three_workers, configure, tmp_path
):
    assert prepare(configure(tmp_path / "out")).fingerprint == one_worker == finished.fingerprint


def test_killed_preparation_redoes_only_unfinished_shards_and_ends_the_same(
    finished, three_workers, configure, corpus, tmp_path
):
    out = tmp_path / "out"
    kill_after(NUM_KEPT_SHARDS, WORK, corpus, out, prefix="data-")
    assert not (out / "tokens").exists()
    (partial,) = out.glob(".tokens.*.partial")
    names = [path.stem for path in (partial / "shard-records").glob("*.json")]
    assert NUM_KEPT_SHARDS <= len(names) < NUM_SHARDS
    made = {out / "tokens" / name: (partial / name).stat() for name in names}
    made |= {path: path.stat() for stage in ("documents", "dedup") for path in (out / stage).iterdir()}
    assert prepare(configure(out)).fingerprint == finished.fingerprint
    assert all(path.stat().st_ino == before.st_ino for path, before in made.items())
    for name in names:
        assert (out / "tokens" / name).stat().st_mtime_ns == made[out / "tokens" / name].st_mtime_ns
    assert not partial.exists()


def test_finished_data_is_confirmed_without_a_cluster_and_new_data_asks_for_it(finished, corpus, tmp_path):
    command = [sys.executable, "-c", NO_CLUSTER, str(corpus), str(finished.out), str(tmp_path / "other")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [finished.fingerprint, str(ClusterUnreachableError.exit_code)]
