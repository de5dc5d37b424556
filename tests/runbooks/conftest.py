"""The situations in which runbooks are followed, each named for its page, and what several of them begin with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.signatures import make_keys
from data_prep.documents import DocumentStore, read_selected
from data_prep.selection import Selection
from pipeline.checkpoint.checkpoint import list_checkpoints
from pipeline.pretrain.stall_watch import watching
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from tests.data_prep.download.publisher import Answer, serve
from tests.pipeline.process_group import PATIENCE_S, forked_environment
from tests.pipeline.ranks import start_ranks
from tests.runbooks.beginnings import corpus as corpus
from tests.runbooks.beginnings import killed_run as killed_run
from tests.runbooks.beginnings import prepared as prepared
from tests.runbooks.beginnings import ray_cluster as ray_cluster
from tests.runbooks.beginnings import run as run
from tests.runbooks.clusters import install_on_cloud_machines as install_on_cloud_machines
from tests.runbooks.clusters import install_on_kubernetes as install_on_kubernetes
from tests.runbooks.clusters import install_on_slurm as install_on_slurm
from tests.runbooks.clusters import install_on_ssh_hosts as install_on_ssh_hosts
from tests.runbooks.clusters import scratch as scratch
from tests.runbooks.materials import (
    ROOT,
    Corpus,
    Situation,
    failed_run,
    named,
    on_local_cluster,
    wait_for_beat,
)
from tests.runbooks.operations import change_a_setting as change_a_setting
from tests.runbooks.operations import delete_a_document as delete_a_document
from tests.runbooks.operations import disk_full as disk_full
from tests.runbooks.operations import head_node_gone as head_node_gone
from tests.runbooks.operations import keep_data_in_a_store as keep_data_in_a_store
from tests.runbooks.operations import mlflow_lost as mlflow_lost
from tests.runbooks.operations import move_a_run as move_a_run
from tests.runbooks.operations import publish_a_model as publish_a_model
from tests.runbooks.operations import resume_on_other_nodes as resume_on_other_nodes
from tests.runbooks.operations import roll_back_by_hand as roll_back_by_hand
from tests.runbooks.operations import straggler as straggler
from tests.runbooks.operations import upgrade_during_a_run as upgrade_during_a_run
from tests.surroundings import flip_bit


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
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        yield Situation(tmp_path, settings, environment, ("answers 403", '"num_fetched": 0'))


@pytest.fixture
def prepare_a_corpus(corpus: Corpus, tmp_path: Path) -> Situation:
    """A package with a file that does not parse: the first attempt ends with exit code 13."""
    config, out = tmp_path / "data.yaml", tmp_path / "data"
    config.write_text(f"base: {corpus.config}\nout: {out}\n")
    settings = {"CONFIG": config, "OUT": out, "MAX_REJECTS": 1}
    return Situation(tmp_path, settings, corpus.environment, ("torn.py", "max_rejects is 0"))


@pytest.fixture
def decontaminate_a_corpus(corpus: Corpus, prepared: Path, tmp_path: Path) -> Situation:
    """A corpus with a document that an evaluation set holds too, and one of many words that it does not."""
    config, out = tmp_path / "data.yaml", tmp_path / "data"
    config.write_text(f"base: {corpus.config}\nout: {out}\nmax_rejects: 1\n")
    shared = DocumentStore.open(prepared / "documents").file(0)
    (text,) = next(iter(read_selected(shared, ["text"], Selection.whole(np.asarray([0])))))[
        "text"
    ].to_pylist()
    folder = tmp_path / "evaluation" / "glue" / "RTE"
    folder.mkdir(parents=True)
    pair = "index\tsentence1\tsentence2\n0\t{}\tNobody has written these words in this order before, has anyone?\n"
    (folder / "dev.tsv").write_text(pair.format(" ".join(text.split())))
    settings = {"CONFIG": config, "OUT": out, "EVALUATION": tmp_path / "evaluation", "TASKS": "[rte]"}
    expected = ('"task":"rte","example":"dev-2"', "rte: 1 of 1 examples", "evaluation-file")
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def corrupt_shard(corpus: Corpus, prepared: Path, tmp_path: Path) -> Situation:
    """A copy of the corpus with one flipped bit in a token shard."""
    out = tmp_path / "data"
    shutil.copytree(prepared, out)
    config = tmp_path / "data.yaml"
    config.write_text(f"base: {corpus.config}\nout: {out}\n")
    shard = max((out / "tokens").glob("*.arrow"))
    flip_bit(shard)
    return Situation(tmp_path, {"CONFIG": config, "OUT": out}, corpus.environment, (f"{shard}: xxh3_128",))


@pytest.fixture
def untrusted_artefact(corpus: Corpus, prepared: Path, tmp_path: Path) -> Situation:
    """Tokens that nobody signed, in a team that has keys."""
    tokens = tmp_path / "tokens"
    shutil.copytree(prepared / "tokens", tokens)
    private, public = make_keys(tmp_path / "keys", "team")
    settings = {"PLACE": tokens, "KEY": private, "TRUSTED": public.parent}
    expected = ("signed by the key", "every file verifies", "team.pub")
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def start_and_watch_a_run(
    run: RunDirectory, killed_run: RunDirectory, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A machine without a cluster, and a run whose tracking store took nothing yet."""
    (run.path / "log.sent").unlink(missing_ok=True)
    settings = {"CONFIG": killed_run.path.parents[1] / "run.yaml", "RUNS": run.path.parent}
    yield from on_local_cluster(
        corpus,
        tmp_path,
        settings | {"OPTIONS": "--dry-run"},
        ("SUCCEEDED", "what would be trained", run.path.name, "Stopped the cluster"),
    )
    sent = int((run.path / "log.sent").read_text())
    assert sent == (run.path / "log.jsonl").stat().st_size


@pytest.fixture
def run_the_whole_road(
    run: RunDirectory, killed_run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A road whose corpus is prepared and whose run was killed; two fine-tunings are still to come."""
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(40)))
    rows = "{kind: rows_classification, train: rows.csv, columns: {text: text, label: label}}"
    (tmp_path / "tune.yaml").write_text(
        f"tasks: {{parity: {rows}}}\ntraining: {{epochs: 1, batch_size: 8, lr: 1e-3, max_length: 32}}\n"
    )
    (tmp_path / "road.yaml").write_text(
        f"name: killed\n"
        f"data: [{{config: {corpus.config}, settings: {{max_rejects: 1}}}}]\n"
        f"pretrain: {{config: {killed_run.path.parents[1] / 'run.yaml'}, settings: {{runs_dir: {run.path.parent}}}}}\n"
        "finetune: [{config: tune.yaml, settings: {seeds: [1, 2]}}]\n"
    )
    yield from on_local_cluster(
        corpus,
        tmp_path,
        {"ROAD": tmp_path / "road.yaml", "OPTIONS": "checkpoint=latest"},
        ("started", f"continuing the run {run.path.name}", f"{run.path.name}@60", "SUCCEEDED", "index.html"),
    )
    assert [one.path.name for one in list_runs(run.path.parent)] == [run.path.name]


@pytest.fixture
def watch_a_run(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose workers were killed, and the preparation that it read."""
    settings = {"RUNS": run.path.parent, "DATA": corpus.out, "FILES": tmp_path / "files"}
    expected = (run.path.name, "lost", "data wait", f'cloze_run_step{{run="{run.path.name}"}}', "alerts.yaml")
    return Situation(tmp_path, settings | {"RUNBOOKS": "https://example.org"}, corpus.environment, expected)


@pytest.fixture
def collect_a_support_bundle(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose workers were killed, and its configuration was damaged."""
    with run.config_file.open("a") as stream:
        stream.write("edited by hand: true\n# xxh3_128 of the lines above: 0\n")
    expected = ("unreadable", "problems.txt", "run/log-tail.jsonl", "secrets were removed")
    return Situation(tmp_path, named(run, OUT=tmp_path / "support.tar.gz"), corpus.environment, expected)


@pytest.fixture
def resume_after_a_failure(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose two workers were killed with SIGKILL; one is left to go on with."""
    expected = ('"event":"finished"', "steps was 60, is 80", f"{run.path.name}@60")
    return Situation(tmp_path, named(run, WORKERS=1, MORE_STEPS=80), corpus.environment, expected)


@pytest.fixture
def corrupt_checkpoint(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose newest checkpoint has one flipped bit."""
    newest = list_checkpoints(run.checkpoints)[-1]
    flip_bit(newest / "model.safetensors")
    expected = ("damaged", f"{newest.name}.corrupt", f"{run.path.name}@60")
    return Situation(tmp_path, named(run), corpus.environment, expected)


@pytest.fixture
def plan_a_run(tmp_path: Path) -> Situation:
    """A configuration whose tokens are not there, on a machine without a GPU."""
    config = ROOT / "configs" / "pretrain" / "roberta-tiny.yaml"
    environment = os.environ | {"PATH": f"{forked_environment() / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    settings = {"CONFIG": config, "NODES": 1, "GPUS": 2, "GPU": "l4"}
    return Situation(
        tmp_path, settings, environment, ("ways to spread the state", "fits: True", "is unknown")
    )


@pytest.fixture
def export_a_model(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run with checkpoints."""
    settings = {"RUN": killed_run.path.name, "RUNS": killed_run.path.parent, "FAMILY": "GPT-2"}
    expected = ("AutoModelForMaskedLM", "it has no head masked_lm", "tokens", "RobertaPreLayerNormConfig")
    return Situation(tmp_path, settings | {"OUT": tmp_path / "out"}, corpus.environment, expected)


@pytest.fixture
def loss_spike(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose threshold is so low that it calls healthy losses spikes."""
    guards = ("guards.spike_score=0.1", "guards.spike_window=8", "guards.max_rollbacks=1")
    run = failed_run(killed_run, tmp_path, 35, *guards)
    expected = (
        '"event":"spike"',
        "LossSpikeError",
        '"data_step"',
        '"event":"finished"',
        f"{run.path.name}@60",
    )
    return Situation(tmp_path, named(run, SPIKE_SCORE=1000, MAX_ROLLBACKS=3), corpus.environment, expected)


@pytest.fixture
def not_a_number(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose learning rate takes the weights beyond all numbers."""
    run = failed_run(killed_run, tmp_path, 36, "optimizer.lr=1e38", "guards.max_skipped_updates=2")
    expected = ('"event":"skipped-update"', "NonFiniteError", '"event":"finished"')
    return Situation(tmp_path, named(run, LR=5e-4), corpus.environment, expected)


@pytest.fixture
def stalled_worker(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of two workers of which one is stopped; the driver's watch looks on."""
    # Without checkpoints of its own, so that it can go on as the run that it was.
    endless = ("steps=100000", "checkpoint.every_steps=100000", "guards.stall_timeout_s=10")
    run.reconfigure(run.config(endless))
    with watching(run):
        process = start_ranks(run, 2)
        stopped = wait_for_beat(run, process, rank=1, num_steps=1)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert process.wait() != 0
    run.reconfigure(run.config(("steps=60", "checkpoint.every_steps=10")))
    expected = ('"event":"stalled"', '"rank":1', '"state":"stopped"', "most recent call first", '"finished"')
    return Situation(tmp_path, named(run, TIMEOUT_S=1800), corpus.environment, expected)


@pytest.fixture
def stop_and_preempt(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A run whose driver has just started its worker."""
    shutil.rmtree(run.heartbeats, ignore_errors=True)
    # The signal comes while the worker still loads and builds, which takes long where many tests run.
    grace = f"guards.grace_s={PATIENCE_S}"
    command = ["cloze", "resume", run.path.name, grace, "--runs-dir", str(run.path.parent)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, env=dict(corpus.environment), stdout=log, stderr=log)
    # A child that ended and is not waited for would still be there for `kill -0`.
    waiting = threading.Thread(target=driver.wait)
    waiting.start()
    wait_for_beat(run, driver, rank=0)
    try:
        yield Situation(tmp_path, named(run), corpus.environment, ("PreemptedError", '"event":"finished"'))
    finally:
        driver.kill()
        waiting.join()
    assert driver.returncode == 75
    assert "cloze resume" in (tmp_path / "driver.log").read_text()


@pytest.fixture
def out_of_memory(run: RunDirectory, killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose network does not fit into any memory."""
    # As it was before its first step.
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    (run.path / "log.jsonl").unlink()
    run = failed_run(run, tmp_path / "large", 37, "model.hidden_size=16777216")
    settings = {"CONFIG": killed_run.path.parents[1] / "run.yaml", "OPTIONS": "batch.micro_batch_size=2"}
    settings |= named(run, GPU="cpu")
    return Situation(
        tmp_path,
        settings,
        corpus.environment,
        ("OutOfMemoryError", "allocate", "GiB per device", run.path.name),
    )


@pytest.fixture
def trace_a_batch(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of which some steps stand out, and one global batch was left out."""
    SkipLedger(run).add(SkippedStep(at_update=8, data_step=8, loss=9.5, score=12.0))
    expected = (
        "workers",
        "target:",
        "tokens, a line for each sentence",
        "was a spike",
        "at_update 8, data_step 8",
    )
    return Situation(tmp_path, named(run, STEP=7), corpus.environment, expected)
