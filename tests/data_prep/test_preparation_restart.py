"""The same data whatever happens on the way: killed in the middle, processes and a node of a cluster lost."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.artefacts.shard_records import summarize_log
from cluster.runtime import ray_on_demand, ray_runtime
from data_prep.job import prepare
from tests.data_prep.conftest import small_config
from tests.data_prep.killed import kill_after

WORK = """
from data_prep.job import prepare
from tests.data_prep.conftest import small_config
prepare(small_config(Path(sys.argv[1]), Path(sys.argv[2])))
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


def test_finished_data_is_confirmed_without_a_cluster_and_new_data_asks_for_it(finished, configure, tmp_path):
    with ray_on_demand("127.0.0.1:1"):
        assert prepare(configure(finished.out)).fingerprint == finished.fingerprint
        with pytest.raises(ClusterUnreachableError):
            prepare(configure(tmp_path / "other"))


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


def sabotage(stage: Path, killed: list[str], remove_node: Callable[[], None]) -> None:
    """Kill worker processes, and then a node, once the first shards of a stage are finished."""
    while not any(stage.parent.glob(f".{stage.name}.*.partial/shard-records/*.json")):
        time.sleep(0.01)
    while len(killed) < KILLED_PROCESSES:
        for process in psutil.Process(os.getpid()).children(recursive=True):
            with suppress(psutil.Error):
                if "make_shards" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append("process")
                    break
        time.sleep(0.05)
    remove_node()
    killed.append("node")


def test_lost_processes_and_a_lost_node_cost_their_shards_only(three_nodes, large_corpus, tmp_path):
    out = tmp_path / "out"
    cluster, nodes = three_nodes
    with ray_runtime(cluster.address):
        undisturbed = prepare(small_config(large_corpus, tmp_path / "undisturbed"))
        killed: list[str] = []
        remove_node = partial(cluster.remove_node, nodes[-1], allow_graceful=False)
        arguments = (out / "documents", killed, remove_node)
        saboteur = threading.Thread(target=sabotage, args=arguments, daemon=True)
        saboteur.start()
        prepared = prepare(small_config(large_corpus, out))
    saboteur.join()
    assert killed == ["process"] * KILLED_PROCESSES + ["node"]
    assert prepared.fingerprint == undisturbed.fingerprint
    # Finished shards were not made again: one line in the log for each of them.
    assert summarize_log(out / "documents")["shards"] == len(prepared.documents.files)
