"""Runbooks about clusters, data and watching: every command block, as printed, in the situation named for its page.

Schedulers and hosts are stand-ins on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.signatures import make_keys
from data_prep.documents import DocumentStore, read_selected
from data_prep.selection import Selection
from pipeline.run.directory import RunDirectory, list_runs
from tests.data_prep.download.conftest import Answer, serve
from tests.pipeline.process_group import forked_environment
from tests.runbooks import map
from tests.runbooks.materials import (
    ROOT,
    Corpus,
    Prepares,
    Situation,
    follow,
    named,
    with_path,
    write_rows,
    write_run,
)
from tests.surroundings import flip_bit, plain_environment


@pytest.fixture
def install_on_slurm(prepared: Path, tmp_path: Path, scratch: str) -> Iterator[Situation]:
    """Two nodes, which are this machine; the job is requeued once, as at the end of its time limit."""
    write_run(tmp_path / "run.yaml", prepared / "tokens", "runs")
    settings = {
        "ENVIRONMENT": forked_environment(),
        "SHARED": tmp_path,
        "CONFIG": "run.yaml",
        "NODES": 2,
        "CPUS": 1,
        "GPUS": 0,
        "OPTIONS": f"--set scratch={scratch} --set memory_gib_per_node=4",
    }
    expected = ("nodes of the cluster", "An earlier attempt of job slurm-1", "ended with exit code 75")
    environment = with_stand_ins(SLURM_STATE=str(tmp_path / "slurm-state"))
    try:
        yield Situation(tmp_path, settings, environment, (*expected, '"event":"finished"'))
    finally:
        if (state := tmp_path / "slurm-state" / "pid").exists():
            os.kill(int(state.read_text()), signal.SIGUSR1)


@pytest.fixture
def install_on_ssh_hosts(tmp_path: Path, scratch: str) -> Iterator[Situation]:
    """A head and one more host, which are both this machine."""
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("", 0))) for _ in range(3)]
        port, dashboard, client = (server.getsockname()[1] for server in servers)
    ports = f"--set port={port} --set dashboard_port={dashboard} --set client_port={client}"
    settings = {
        "ENVIRONMENT": forked_environment(),
        "SHARED": tmp_path,
        "HEAD": "127.0.0.1",
        "WORKERS": "localhost",
        "OPTIONS": f"--set scratch={scratch} --set cpus=1 {ports}",
        "DASHBOARD": dashboard,
    }
    environment = with_stand_ins()
    try:
        yield Situation(tmp_path, settings, environment, ("0 failed", "SUCCEEDED", "worker stopped"))
    finally:
        if (stop := tmp_path / "hosts" / "stop.sh").exists():
            subprocess.run([stop], env=environment, capture_output=True)


def of_an_image(tmp_path: Path, **settings: object) -> dict[str, object]:
    return {
        "IMAGE": "registry.example.org/me/cloze:1",
        "CLOZE": ROOT,
        "OUT": tmp_path / "cluster",
        "WORKERS": 2,
        **settings,
    }


@pytest.fixture
def install_on_kubernetes(tmp_path: Path) -> Situation:
    """A Kubernetes that has the operator; its client checks every object by schema."""
    pytest.importorskip("kubernetes_validate")
    settings = of_an_image(
        tmp_path, GPUS=8, OPTIONS="--set fault_tolerant_head=true", VERB="pretrain run.yaml"
    )
    created = ("RayCluster/cloze created", "RayJob/train created", "NetworkPolicy/cloze-redis created")
    return Situation(tmp_path, settings, with_stand_ins(), (*created, "with 3 keys", "0 failed"))


@pytest.fixture
def install_on_cloud_machines(tmp_path: Path) -> Situation:
    """A launcher that checks the configuration as Ray does, and starts no machine."""
    settings = of_an_image(
        tmp_path, TYPE="p4d.24xlarge", NFS="fs-1.example.org:/", OPTIONS="--set workers.gpus=8"
    )
    environment = with_stand_ins(HOME=str(tmp_path))
    return Situation(tmp_path, settings, environment, ("1 + 2 machines", "0 failed", "removed"))


def with_stand_ins(**variables: str) -> dict[str, str]:
    """An environment of no cluster, in which the stand-ins are found first."""
    environment = plain_environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    return with_path(environment, Path(__file__).parent / "stand_ins", forked_environment() / "bin")


@pytest.fixture
def download_a_corpus(tmp_path: Path) -> Iterator[Situation]:
    """A publisher that refuses one of the two files of a dump once."""
    bodies = {f"xxwiki-20260101-pages-articles-multistream{n}.xml.bz2": f"part {n}".encode() for n in (1, 2)}
    files = {
        name: {"size": len(body), "url": f"/{name}", "sha1": hashlib.sha1(body).hexdigest()}
        for name, body in bodies.items()
    }
    status = {"jobs": {"articlesmultistreamdump": {"status": "done", "files": files}}}
    with serve() as publisher:
        publisher.files |= {f"/{name}": body for name, body in bodies.items()}
        publisher.files["/xxwiki/"] = b'<a href="20260101/">20260101/</a>'
        publisher.files["/xxwiki/20260101/dumpstatus.json"] = json.dumps(status).encode()
        publisher.answers[f"/{min(bodies)}"] = [Answer(403)]
        settings = {"PUBLISHER": "wikipedia", "WHAT": "xx", "OUT": tmp_path / "downloads"}
        settings |= {"BASE_URL": publisher.url, "CONTACT": "me@example.org"}
        # As an operator starts it: here alone, no command of a page is forked.
        environment = with_path(os.environ, Path(sys.executable).parent)
        yield Situation(tmp_path, settings, environment, ("answers 403", '"num_fetched": 0'))


@pytest.fixture
def prepare_a_corpus(corpus: Corpus, tmp_path: Path, situation: Prepares) -> Situation:
    """A package with a file that does not parse: the first attempt ends with exit code 13."""
    config, out = tmp_path / "data.yaml", tmp_path / "data"
    config.write_text(f"base: {corpus.config}\nout: {out}\n")
    return situation({"CONFIG": config, "OUT": out, "MAX_REJECTS": 1}, "torn.py", "max_rejects is 0")


@pytest.fixture
def decontaminate_a_corpus(corpus: Corpus, prepared: Path, tmp_path: Path, situation: Prepares) -> Situation:
    """A corpus with a document that an evaluation set holds too, and one of many words that it does not."""
    corpus.write(tmp_path / "data.yaml", tmp_path / "data")
    shared = DocumentStore(prepared / "documents", prepared / "dedup").file(0)
    first = next(iter(read_selected(shared, ["text"], Selection.whole(np.asarray([0])))))
    words = " ".join(first["text"][0].as_py().split())
    folder = tmp_path / "evaluation" / "glue" / "RTE"
    folder.mkdir(parents=True)
    other = "Nobody has written these words in this order before, has anyone?"
    (folder / "dev.tsv").write_text(f"index\tsentence1\tsentence2\n0\t{words}\t{other}\n")
    settings = {"CONFIG": tmp_path / "data.yaml", "OUT": tmp_path / "data"}
    settings |= {"EVALUATION": tmp_path / "evaluation", "TASKS": "[rte]"}
    return situation(settings, '"task":"rte","example":"dev-2"', "rte: 1 of 1 examples", "evaluation-file")


@pytest.fixture
def corrupt_shard(corpus: Corpus, prepared: Path, tmp_path: Path, situation: Prepares) -> Situation:
    """A copy of the corpus with one flipped bit in a token shard."""
    config, out = tmp_path / "data.yaml", tmp_path / "data"
    shutil.copytree(prepared, out)
    config.write_text(f"base: {corpus.config}\nout: {out}\n")
    shard = max((out / "tokens").glob("*.arrow"))
    flip_bit(shard)
    return situation({"CONFIG": config, "OUT": out}, f"{shard}: xxh3_128")


@pytest.fixture
def untrusted_artefact(prepared: Path, tmp_path: Path, situation: Prepares) -> Situation:
    """Tokens that nobody signed, in a team that has keys."""
    tokens = tmp_path / "tokens"
    shutil.copytree(prepared / "tokens", tokens)
    private, public = make_keys(tmp_path / "keys", "team")
    settings = {"PLACE": tokens, "KEY": private, "TRUSTED": public.parent}
    return situation(settings, "signed by the key", "every file verifies", "team.pub")


@pytest.fixture
def start_and_watch_a_run(
    run: RunDirectory, run_config: Path, without_cluster: Prepares
) -> Iterator[Situation]:
    """A machine without a cluster, and a run whose tracking store took nothing yet."""
    (run.path / "log.sent").unlink(missing_ok=True)
    settings = {"CONFIG": run_config, "RUNS": run.path.parent, "OPTIONS": "--dry-run"}
    yield without_cluster(
        settings, "SUCCEEDED", "what would be trained", run.path.name, "Stopped the cluster"
    )
    sent = int((run.path / "log.sent").read_text())
    assert sent == (run.path / "log.jsonl").stat().st_size


@pytest.fixture
def run_the_whole_road(
    run: RunDirectory, run_config: Path, corpus: Corpus, tmp_path: Path, without_cluster: Prepares
) -> Iterator[Situation]:
    """A road whose corpus is prepared and whose run was killed; two fine-tunings are still to come."""
    task = write_rows(tmp_path, 40)
    (tmp_path / "tune.yaml").write_text(
        f"tasks: {{parity: {task}}}\ntraining: {{epochs: 1, batch_size: 8, lr: 1e-3, max_length: 32}}\n"
    )
    (tmp_path / "road.yaml").write_text(
        f"name: killed\n"
        f"data: [{{config: {corpus.config}, settings: {{max_rejects: 1}}}}]\n"
        f"pretrain: {{config: {run_config}, settings: {{runs_dir: {run.path.parent}}}}}\n"
        "finetune: [{config: tune.yaml, settings: {seeds: [1, 2]}}]\n"
    )
    name = run.path.name
    settings = {"ROAD": tmp_path / "road.yaml", "OPTIONS": "checkpoint=latest"}
    expected = ("started", f"continuing the run {name}", f"{name}@60", "SUCCEEDED", "index.html")
    yield without_cluster(settings, *expected)
    assert [one.path.name for one in list_runs(run.path.parent)] == [name]


@pytest.fixture
def watch_a_run(run: RunDirectory, corpus: Corpus, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose workers were killed, and the preparation that it read."""
    settings = {"RUNS": run.path.parent, "DATA": corpus.out, "FILES": tmp_path / "files"}
    exported = f'cloze_run_step{{run="{run.path.name}"}}'
    expected = (run.path.name, "lost", "data wait", exported, "alerts.yaml")
    return situation(settings | {"RUNBOOKS": "https://example.org"}, *expected)


@pytest.fixture
def collect_a_support_bundle(run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose workers were killed, and its configuration was damaged."""
    with run.config_file.open("a") as stream:
        stream.write("edited by hand: true\n# xxh3_128 of the lines above: 0\n")
    expected = ("unreadable", "problems.txt", "run/log-tail.jsonl", "secrets were removed")
    return situation(named(run, OUT=tmp_path / "support.tar.gz"), *expected)


@pytest.fixture
def plan_a_run(tmp_path: Path) -> Situation:
    """A configuration whose tokens are not there, on a machine without a GPU."""
    config = ROOT / "configs" / "pretrain" / "roberta-tiny.yaml"
    settings = {"CONFIG": config, "NODES": 1, "GPUS": 2, "GPU": "l4"}
    environment = with_path(os.environ, forked_environment() / "bin")
    expected = ("ways to spread the state", "fits: True", "is unknown")
    return Situation(tmp_path, settings, environment, expected)


PAGES = [page for page in map.PAGES if map.situation_of(page) in globals()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_following_the_page_leads_out_of_its_situation(page: Path, request: pytest.FixtureRequest):
    follow(page, request.getfixturevalue(map.situation_of(page)))
