"""The same data whatever happens on the way: killed in the middle, processes and a node of a cluster lost."""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.artefacts.shard_records import summarize_log
from cluster.runtime import ray_runtime
from data_prep.job import prepare
from tests.data_prep.conftest import small_config
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


def test_killed_preparation_redoes_only_unfinished_shards_and_ends_the_same_with_other_workers(
    finished, configure, corpus, tmp_path
):
    out = tmp_path / "out"
    kill_after(3, WORK, corpus, out, prefix="data-")
    assert not (out / "tokens").exists()
    (partial,) = out.glob(".tokens.*.partial")
    names = [path.stem for path in (partial / "shard-records").glob("*.json")]
    assert 3 <= len(names) < 7
    made = {out / "tokens" / name: (partial / name).stat() for name in names}
    made |= {path: path.stat() for stage in ("documents", "dedup") for path in (out / stage).iterdir()}
    with ray_runtime("local", num_cpus=3):
        assert prepare(configure(out)).fingerprint == finished.fingerprint
    assert all(path.stat().st_ino == before.st_ino for path, before in made.items())
    for name in names:
        assert (out / "tokens" / name).stat().st_mtime_ns == made[out / "tokens" / name].st_mtime_ns
    assert not partial.exists()


def test_finished_data_is_confirmed_without_a_cluster_and_new_data_asks_for_it(finished, corpus, tmp_path):
    command = [sys.executable, "-c", NO_CLUSTER, str(corpus), str(finished.out), str(tmp_path / "other")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [finished.fingerprint, str(ClusterUnreachableError.exit_code)]


COPIES = 6
"""The small corpus this many times over, so that there is time to kill something."""
KILLED_PROCESSES = 2


@pytest.fixture
def large_corpus(corpus, tmp_path) -> Path:
    for copy in range(COPIES):
        for path in corpus.glob("*/*"):
            text = path.read_text().replace('<doc id="', f'<doc id="{copy}').replace("the ", f"the{copy} ")
            target = tmp_path / "large" / path.parent.name / f"{copy}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return tmp_path / "large"


@pytest.fixture
def three_nodes():
    """A head that runs no tasks but one, and two nodes that can be lost."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()


class Saboteur(threading.Thread):
    """Kills worker processes, and then a node, once the first shards of a stage are finished."""

    def __init__(self, cluster, node, stage: Path) -> None:
        super().__init__(daemon=True)
        self._cluster, self._node, self._stage = cluster, node, stage
        self.killed: list[str] = []

    def run(self) -> None:
        pattern = f".{self._stage.name}.*.partial/shard-records/*.json"
        while not any(self._stage.parent.glob(pattern)):
            time.sleep(0.01)
        while len(self.killed) < KILLED_PROCESSES:
            self._kill_a_task()
            time.sleep(0.05)
        self._cluster.remove_node(self._node, allow_graceful=False)
        self.killed.append("node")

    def _kill_a_task(self) -> None:
        for process in psutil.Process(os.getpid()).children(recursive=True):
            with suppress(psutil.Error):
                if "make_shards" in " ".join(process.cmdline()):
                    process.kill()
                    self.killed.append("process")
                    return


def test_lost_processes_and_a_lost_node_cost_their_shards_only(three_nodes, large_corpus, tmp_path):
    out = tmp_path / "out"
    cluster, nodes = three_nodes
    with ray_runtime(cluster.address):
        undisturbed = prepare(small_config(large_corpus, tmp_path / "undisturbed"))
        saboteur = Saboteur(cluster, nodes[-1], out / "documents")
        saboteur.start()
        prepared = prepare(small_config(large_corpus, out))
    saboteur.join()
    assert saboteur.killed == ["process"] * KILLED_PROCESSES + ["node"]
    assert prepared.fingerprint == undisturbed.fingerprint
    # Finished shards were not made again: one line in the log for each of them.
    assert summarize_log(out / "documents")["shards"] == len(prepared.documents.files)
