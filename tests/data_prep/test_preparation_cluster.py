"""A preparation on a cluster of three nodes, of which one is lost on the way, and worker processes besides."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.artefacts.shard_records import summarize_log
from cluster.runtime import ray_runtime
from data_prep.job import prepare
from tests.data_prep.conftest import small_config

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
