"""The situations of the pages about what operators do to runs, data and models of their own accord."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import orjson
import psutil
import pytest

from data_prep.token_store import TokenStore
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.inspect.exposure import exposure_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from tests.object_store import running_store
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import start_ranks
from tests.runbooks.materials import (
    Corpus,
    Situation,
    copy_run,
    failed_run,
    named,
    on_local_cluster,
    wait_for_beat,
)

LARGEST_FILE_KIB = 128
"""Smaller than the file of a checkpoint, larger than the log of a short run."""


def _steps(run: RunDirectory) -> list[int]:
    return [step_of(path) for path in list_checkpoints(run.checkpoints)]


@pytest.fixture
def roll_back_by_hand(
    run: RunDirectory, killed_run: RunDirectory, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A run whose newest checkpoint is not the one to go on from."""
    step = _steps(run)[0]
    settings = named(run, STEP=step, LR=5e-4)
    yield Situation(tmp_path, settings, corpus.environment, (f"at step {step} of 60", ".rolled-back", "@60"))
    (event,) = run.events(Event.ROLLED_BACK)
    assert event["step"] == step
    assert len(event["set_aside"]) == len(_steps(killed_run)) - 1


@pytest.fixture
def change_a_setting(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run that is to go on with another learning rate, and fewer checkpoints."""
    settings = named(run, FREE="checkpoint.keep_last=2")
    settings |= {"CHANGE": "optimizer.lr=5e-4", "KEY": "optimizer.lr"}
    expected = ("optimizer.lr was 0.001, is 0.0005", "config.yaml.1")
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def resume_on_other_nodes(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of two workers of which one is left."""
    settings = named(run, WORKERS=1, ODD=3)
    return Situation(tmp_path, settings, corpus.environment, ('"world_size":2', '"world_size":1', "@60"))


@pytest.fixture
def upgrade_during_a_run(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run that made its last checkpoints on one worker, with another version of a package than the one here."""
    # The newer of the checkpoints that are compared is made on as many workers as the rehearsal has.
    older = _steps(run)[-1]
    newer = older + 10
    run.reconfigure(run.config(("checkpoint.keep_last=10",)))
    process = start_ranks(run, 1)
    while newer not in _steps(run):
        assert process.poll() is None, process.output[-3000:]
        time.sleep(0.02)
    (*_, started) = run.events(Event.STARTED)
    for worker in started["workers"]:
        with suppress(ProcessLookupError):
            os.kill(worker["pid"], signal.SIGKILL)
    process.wait()
    history = run.history.read_text()
    version = started["environment"]["packages"]["tokenizers"]
    run.history.write_text(history.replace(f'"tokenizers":"{version}"', '"tokenizers":"0.0.1"'))
    settings = named(run, COPY=tmp_path / "rehearsal")
    expected = (f"tokenizers was 0.0.1, is {version}", "bit for bit the same")
    return Situation(tmp_path, settings | {"OLDER": older, "NEWER": newer}, corpus.environment, expected)


@pytest.fixture
def mlflow_lost(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of which a model was published, and a tracking store that is empty."""
    run.retrack("0" * 32, f"sqlite:///{run.path.parent.resolve()}/mlflow.db", "0")
    published = {
        "model": "tagger",
        "version": 7,
        "alias": "champion",
        "fingerprint": "",
        "step": _steps(run)[0],
    }
    run.record_event(Event.PUBLISHED, **published)
    settings = named(run, MODEL="tagger")
    return Situation(tmp_path, settings, corpus.environment, ("MLflow run", "champion", "checkpoint "))


@pytest.fixture
def keep_data_in_a_store(
    run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A store without data, and a run that reads a preparation's directory."""
    settings = {
        "DATA": prepared,
        "STORE": "s3://bucket/corpus",
        "RUNS": run.path.parent,
        "RUN": run.path.name,
        "FRESH": tmp_path / "fresh",
    }
    with running_store():
        store = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        environment = {**corpus.environment, **store, "CLOZE_CACHE": str(tmp_path / "cache")}
        expected = ("s3://bucket/corpus: every file verifies", "fetch s3://bucket/corpus/tokens", "from step")
        yield Situation(tmp_path, settings, environment, expected)


@pytest.fixture
def publish_a_model(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run with checkpoints, and a small task."""
    old = _steps(run)[0]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(40)))
    rows = "{kind: rows_classification, train: rows.csv, columns: {text: text, label: label}}"
    (tmp_path / "tune.yaml").write_text(
        f"tasks: {{parity: {rows}}}\nseeds: [1]\n"
        "training: {epochs: 1, batch_size: 8, lr: 1e-3, max_length: 32}\n"
    )
    settings = {
        "RUN": run.path.name,
        "RUNS": run.path.parent,
        "OLD": old,
        "NAME": "tagger",
        "TASKS": "tune.yaml",
    }
    environment = {**corpus.environment, "MLFLOW_TRACKING_URI": run.info.tracking_uri}
    return Situation(tmp_path, settings, environment, ("champion", f"step-{old:08d}", "scores "))


@pytest.fixture
def delete_a_document(
    run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A preparation with a document that is to go, which a run has read."""
    out, config = tmp_path / "data", tmp_path / "data.yaml"
    shutil.copytree(prepared, out)
    config.write_text(f"base: {corpus.config}\nout: {out}\nmax_rejects: 1\n")
    before = TokenStore.open(out)
    every = np.arange(before.num_documents)
    number = exposure_of(run, {before.fingerprint: every}, tmp_path / "finetuned")["documents"][0]["number"]
    document = before.document(number)
    text = " ".join(max(document.text.splitlines(), key=len).split("  ")).strip()
    settings = {"CONFIG": config, "OUT": out, "TEXT": text, "LIST": tmp_path / "takedown.txt"}
    settings |= {"RUNS": run.path.parent, "SCORES": tmp_path / "finetuned"}
    yield Situation(
        tmp_path, settings, corpus.environment, (document.doc_id, "updates that read them", "first_step")
    )
    after = TokenStore.open(out)
    assert document.doc_id not in after.doc_ids().to_pylist()
    first, second = ({one.path: one.xxh3_128 for one in each.manifest.files} for each in (before, after))
    assert len([name for name in first if name.endswith(".arrow") and first[name] != second[name]]) == 1
    assert after.tokenizer_path.read_bytes() == (prepared / "tokens" / "tokenizer.json").read_bytes()


@pytest.fixture
def move_a_run(
    killed_run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path
) -> Iterator[Situation]:
    """A run and its tokens on a file system, and an empty one."""
    old, new = tmp_path / "old", tmp_path / "new"
    run = copy_run(killed_run, old / "runs")
    shutil.copytree(prepared / "tokens", old / "data" / "tokens")
    settings = {"RUN": run.path.name, "OLD": old, "NEW": new, "TOKENS": "data/tokens"}
    yield Situation(tmp_path, settings, corpus.environment, ('"event":"finished"', f"{new}/data/tokens"))
    assert RunDirectory(new / "runs" / run.path.name).info.tracking_uri.endswith(f"{new}/runs/mlflow.db")


@pytest.fixture
def disk_full(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose files may not grow beyond a size, so that no checkpoint could be written any more."""
    run = failed_run(
        killed_run, tmp_path, 33, "checkpoint.every_steps=2", shell=f"ulimit -f {LARGEST_FILE_KIB}; "
    )
    remains = run.checkpoints / ".step-00000099.killed.partial"
    remains.mkdir()
    run.reconfigure(run.config(("checkpoint.every_steps=10",)))
    expected = ("checkpoint-failed", "File too large", remains.name, '"event":"finished"')
    return Situation(tmp_path, named(run, DATA=corpus.out.parent), corpus.environment, expected)


@pytest.fixture
def straggler(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run of two workers of which one is stopped for most of the time, until the run says so."""
    endless = ("steps=100000", "checkpoint.every_steps=100000", "guards.straggler_every_steps=5")
    run.reconfigure(run.config(endless))
    process = start_ranks(run, 2)
    slow = wait_for_beat(run, process, rank=1, num_steps=1)
    deadline = time.monotonic() + PATIENCE_S
    while not run.events(Event.STRAGGLER):
        assert process.poll() is None, process.output[-3000:]
        assert time.monotonic() < deadline
        for number, duration_s in ((signal.SIGSTOP, 0.05), (signal.SIGCONT, 0.01)):
            os.kill(slow.pid, number)
            time.sleep(duration_s)
    (*_, started) = run.events(Event.STARTED)
    for worker in started["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    process.wait()
    run.reconfigure(run.config(("steps=60", "checkpoint.every_steps=10")))
    expected = ('"event":"straggler"', '"tokens_per_s"', '"event":"finished"')
    return Situation(tmp_path, named(run, WORKERS=1), corpus.environment, expected)


@pytest.fixture
def head_node_gone(run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A run that was submitted to a cluster of which every process was killed at once, as with its machine."""
    shutil.rmtree(run.heartbeats, ignore_errors=True)
    settings = named(run)
    for situation in on_local_cluster(
        corpus, tmp_path, settings, ("lost", "SUCCEEDED", '"event":"finished"')
    ):
        environment = dict(situation.environment)
        submit = [
            "cloze",
            "submit",
            "--",
            "resume",
            run.path.name,
            "--runs-dir",
            str(run.path.parent),
            "steps=60",
        ]
        subprocess.run(submit, env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not run.heartbeats.exists() or not any(run.heartbeats.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        _kill_all(environment["CLOZE_LOCAL_CLUSTER"])
        yield situation


def _kill_all(state_file: str) -> None:
    """SIGKILL to every process of a local cluster, and to what it started."""
    first = psutil.Process(orjson.loads(Path(state_file).read_bytes())["pid"])
    doomed = [first, *first.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, timeout=PATIENCE_S)
