"""The situations in which runbooks are followed, each named for its page, and what several of them begin with."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.signatures import make_keys
from data_prep.documents import DocumentStore, read_selected
from data_prep.selection import Selection
from pipeline.checkpoints.checkpoint import checkpoint_name, list_checkpoints
from pipeline.config.loading import load_config
from pipeline.pretrain.guards.stall_watch import watching
from pipeline.pretrain.launch import create_run
from pipeline.runs.config import PretrainConfig
from pipeline.runs.directory import RunDirectory, list_runs
from pipeline.runs.skipped_data import SkipLedger, SkippedStep
from tests.data_prep.download.publisher import Answer, serve
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import start_ranks
from tests.runbooks.clusters import install_on_cloud_machines as install_on_cloud_machines
from tests.runbooks.clusters import install_on_kubernetes as install_on_kubernetes
from tests.runbooks.clusters import install_on_slurm as install_on_slurm
from tests.runbooks.clusters import install_on_ssh_hosts as install_on_ssh_hosts
from tests.runbooks.clusters import scratch as scratch
from tests.runbooks.materials import ROOT, Corpus, Situation, copy_run, failed_run, flip_bit, wait_for_beat

RAY = """
import ray, sys
from cluster.runtime import ray_runtime
with ray_runtime("local", num_cpus=4):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
"""One cluster for all pages that need one, because starting it takes longer than anything that they do."""


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
    shared = DocumentStore.open(prepared / "documents").files[0]
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
def start_and_watch_a_run(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A machine without a cluster, and a run whose tracking store took nothing yet."""
    run = copy_run(killed_run, tmp_path / "runs")
    (run.path / "log.sent").unlink(missing_ok=True)
    settings = {"CONFIG": killed_run.path.parents[1] / "run.yaml", "RUNS": run.path.parent}
    yield from _on_local_cluster(
        corpus,
        tmp_path,
        settings | {"OPTIONS": "--dry-run"},
        ("SUCCEEDED", "what would be trained", run.path.name, "Stopped the cluster"),
    )
    sent = int((run.path / "log.sent").read_text())
    assert sent == (run.path / "log.jsonl").stat().st_size


@pytest.fixture
def run_the_whole_road(
    killed_run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A road whose corpus is prepared and whose run was killed; two fine-tunings are still to come."""
    run = copy_run(killed_run, tmp_path / "runs")
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
    yield from _on_local_cluster(
        corpus,
        tmp_path,
        {"ROAD": tmp_path / "road.yaml", "OPTIONS": "checkpoint=latest"},
        ("started", f"continuing the run {run.path.name}", f"{run.path.name}@60", "SUCCEEDED", "index.html"),
    )
    assert [one.path.name for one in list_runs(run.path.parent)] == [run.path.name]


@pytest.fixture
def watch_a_run(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose workers were killed, and the preparation that it read."""
    run = copy_run(killed_run, tmp_path / "runs")
    settings = {"RUNS": run.path.parent, "DATA": corpus.out, "FILES": tmp_path / "files"}
    expected = (run.path.name, "lost", "data wait", f'cloze_run_step{{run="{run.path.name}"}}', "alerts.yaml")
    return Situation(tmp_path, settings | {"RUNBOOKS": "https://example.org"}, corpus.environment, expected)


@pytest.fixture
def collect_a_support_bundle(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose workers were killed, and its configuration was damaged."""
    run = copy_run(killed_run, tmp_path / "runs")
    with run.config_file.open("a") as stream:
        stream.write("edited by hand: true\n# xxh3_128 of the lines above: 0\n")
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "OUT": tmp_path / "support.tar.gz"}
    expected = ("unreadable", "problems.txt", "run/log-tail.jsonl", "secrets were removed")
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def resume_after_a_failure(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose two workers were killed with SIGKILL; one is left to go on with."""
    run = copy_run(killed_run, tmp_path / "runs")
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "WORKERS": 1, "MORE_STEPS": 80}
    expected = ('"event":"finished"', "steps was 60, is 80", f"{run.path.name}@60")
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def corrupt_checkpoint(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose newest checkpoint has one flipped bit."""
    run = copy_run(killed_run, tmp_path / "runs")
    newest = list_checkpoints(run.checkpoints)[-1]
    flip_bit(newest / "model.safetensors")
    expected = ("damaged", f"{newest.name}.corrupt", f"{run.path.name}@60")
    return Situation(tmp_path, {"RUN": run.path.name, "RUNS": run.path.parent}, corpus.environment, expected)


@pytest.fixture
def plan_a_run(tmp_path: Path) -> Situation:
    """A configuration whose tokens are not there, on a machine without a GPU."""
    config = ROOT / "configs" / "pretrain" / "roberta-tiny.yaml"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
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
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "SPIKE_SCORE": 1000, "MAX_ROLLBACKS": 3}
    expected = (
        '"event":"spike"',
        "LossSpikeError",
        '"data_step"',
        '"event":"finished"',
        f"{run.path.name}@60",
    )
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def not_a_number(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose learning rate takes the weights beyond all numbers."""
    run = failed_run(killed_run, tmp_path, 36, "optimizer.lr=1e38", "guards.max_skipped_updates=2")
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "LR": 5e-4}
    expected = ('"event":"skipped-update"', "NonFiniteError", '"event":"finished"')
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def stalled_worker(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of two workers of which one is stopped; the driver's watch looks on."""
    run = copy_run(killed_run, tmp_path / "runs")
    # Without checkpoints of its own, so that it can go on as the run that it was.
    endless = ("steps=100000", "checkpoint.every_steps=100000", "guards.stall_timeout_s=10")
    run.reconfigure(run.config(endless))
    with watching(run):
        process = start_ranks(run, 2)
        stopped = wait_for_beat(run, process, rank=1, num_steps=1)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert process.wait() != 0
    run.reconfigure(run.config(("steps=60", "checkpoint.every_steps=10")))
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "TIMEOUT_S": 1800}
    expected = ('"event":"stalled"', '"rank":1', '"state":"stopped"', "most recent call first", '"finished"')
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def stop_and_preempt(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A run whose driver has just started its worker."""
    run = copy_run(killed_run, tmp_path / "runs")
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
    settings = {"RUN": run.path.name, "RUNS": run.path.parent}
    try:
        yield Situation(tmp_path, settings, corpus.environment, ("PreemptedError", '"event":"finished"'))
    finally:
        driver.kill()
        waiting.join()
    assert driver.returncode == 75
    assert "cloze resume" in (tmp_path / "driver.log").read_text()


@pytest.fixture
def out_of_memory(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose network does not fit into any memory."""
    run = copy_run(killed_run, tmp_path / "runs")
    # As it was before its first step.
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    (run.path / "log.jsonl").unlink()
    run = failed_run(run, tmp_path / "large", 37, "model.hidden_size=16777216")
    settings = {"CONFIG": killed_run.path.parents[1] / "run.yaml", "OPTIONS": "batch.micro_batch_size=2"}
    settings |= {"RUN": run.path.name, "RUNS": run.path.parent, "GPU": "cpu"}
    return Situation(
        tmp_path,
        settings,
        corpus.environment,
        ("OutOfMemoryError", "allocate", "GiB per device", run.path.name),
    )


@pytest.fixture
def trace_a_batch(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of which some steps stand out, and one global batch was left out."""
    run = copy_run(killed_run, tmp_path / "runs")
    SkipLedger(run).add(SkippedStep(at_update=8, data_step=8, loss=9.5, score=12.0))
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "STEP": 7}
    expected = (
        "workers",
        "target:",
        "tokens, a line for each sentence",
        "was a spike",
        "at_update 8, data_step 8",
    )
    return Situation(tmp_path, settings, corpus.environment, expected)


def _on_local_cluster(
    corpus: Corpus, directory: Path, settings: Mapping[str, object], expected: tuple[str, ...]
) -> Iterator[Situation]:
    """A situation on a machine without a cluster: the page starts a local one, which ends with the test."""
    inherited = {name: value for name, value in corpus.environment.items() if not name.startswith("RAY_")}
    environment = inherited | {"CLOZE_LOCAL_CLUSTER": str(directory / "cluster.json")}
    try:
        yield Situation(directory, settings, environment, expected)
    finally:
        subprocess.run(["cloze", "stop", "--cluster"], env=environment, check=True, capture_output=True)


# --- what they begin with --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, ray_cluster: Mapping[str, str]) -> Corpus:
    """The configuration; nothing is prepared yet."""
    place = tmp_path_factory.mktemp("runbooks")
    package = place / "packages" / "torn_docs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""{"A package of which one file was cut off. " * 5}"""\n')
    (package / "torn.py").write_text("def broken(:\n")
    config = place / "data.yaml"
    # Paths are absolute, because workers of a cluster that was there before start in a directory of its own.
    source = "{kind: python_docs, name: docstrings, stdlib: false, packages: [click, torn_docs]}"
    config.write_text(
        f"base: {ROOT}/configs/demo/practice-data.yaml\nout: {place}/data\nsources: [{source}]\n"
    )
    environment = dict(ray_cluster) | {"PYTHONPATH": str(package.parent)}
    return Corpus(config, place / "data", environment)


@pytest.fixture(scope="session")
def prepared(corpus: Corpus) -> Path:
    """The corpus on disk. To be copied, not changed."""
    command = ["cloze", "data", "prepare", str(corpus.config), "max_rejects=1", "--json"]
    done = subprocess.run(command, env=dict(corpus.environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return corpus.out


@pytest.fixture(scope="session")
def killed_run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with checkpoints of which both workers got SIGKILL half-way. To be copied, not changed."""
    place = tmp_path_factory.mktemp("killed")
    config = place / "run.yaml"
    config.write_text(
        f"base: {ROOT}/configs/demo/practice-pretrain.yaml\nruns_dir: {place}/runs\n"
        f"data: {{stores: [{{path: {prepared}/tokens}}]}}\ncluster: {{workers: 1}}\n"
    )
    settings = load_config(PretrainConfig, config)
    run = create_run(settings)
    process = start_ranks(run, 2)
    deadline = time.monotonic() + PATIENCE_S
    while len(list_checkpoints(run.checkpoints)) < 2:
        assert process.poll() is None, process.output[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (started,) = (event for event in run.events() if event["event"] == "started")
    for worker in started["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    process.wait()
    assert not (run.checkpoints / checkpoint_name(settings.steps)).exists()
    return run


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """An environment in which `cloze` finds a running Ray cluster that nobody else can use."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    removed = ("MLFLOW_", "CLOZE_", "RAY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = kept | {"PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", RAY],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "Ray did not start"
        yield environment | {"RAY_ADDRESS": address}
    finally:
        process.communicate(timeout=PATIENCE_S)
