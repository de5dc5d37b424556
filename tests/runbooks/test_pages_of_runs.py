"""Runbooks about runs and models: every command block, as printed, in the situation named for its page."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
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
from pipeline.pretrain.stall_watch import watching
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from tests.pipeline.process_group import PATIENCE_S, wait_until
from tests.pipeline.ranks import start_ranks
from tests.runbooks import map
from tests.runbooks.materials import (
    Corpus,
    Prepares,
    Situation,
    copy_run,
    failed_run,
    follow,
    kill_workers,
    named,
    wait_for_beat,
    write_rows,
)
from tests.surroundings import flip_bit

LARGEST_FILE_KIB = 128
"""Smaller than the file of a checkpoint, larger than the log of a short run."""
FINISHED = '"event":"finished"'
ENDLESS = ("steps=100000", "checkpoint.every_steps=100000")
"""No checkpoint is made, so that the run can go on as the run that it was."""
AS_BEFORE = ("steps=60", "checkpoint.every_steps=10")


def steps_of(run: RunDirectory) -> list[int]:
    return [step_of(path) for path in list_checkpoints(run.checkpoints)]


@pytest.fixture
def resume_after_a_failure(run: RunDirectory, situation: Prepares) -> Situation:
    """A run whose two workers were killed with SIGKILL; one is left to go on with."""
    settings = named(run, WORKERS=1, MORE_STEPS=80)
    return situation(settings, FINISHED, "steps was 60, is 80", f"{run.path.name}@60")


@pytest.fixture
def corrupt_checkpoint(run: RunDirectory, situation: Prepares) -> Situation:
    """A run whose newest checkpoint has one flipped bit."""
    newest = list_checkpoints(run.checkpoints)[-1]
    flip_bit(newest / "model.safetensors")
    return situation(named(run), "damaged", f"{newest.name}.corrupt", f"{run.path.name}@60")


@pytest.fixture
def export_a_model(killed_run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run with checkpoints."""
    settings = named(killed_run, FAMILY="GPT-2", OUT=tmp_path / "out")
    expected = ("AutoModelForMaskedLM", "it has no head masked_lm", "tokens", "RobertaPreLayerNormConfig")
    return situation(settings, *expected)


@pytest.fixture
def loss_spike(killed_run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose threshold is so low that it calls healthy losses spikes."""
    guards = ("guards.spike_score=0.1", "guards.spike_window=8", "guards.max_rollbacks=1")
    run = failed_run(killed_run, tmp_path, 35, *guards)
    expected = ('"event":"spike"', "LossSpikeError", '"data_step"', FINISHED, f"{run.path.name}@60")
    return situation(named(run, SPIKE_SCORE=1000, MAX_ROLLBACKS=3), *expected)


@pytest.fixture
def not_a_number(killed_run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose learning rate takes the weights beyond all numbers."""
    run = failed_run(killed_run, tmp_path, 36, "optimizer.lr=1e38", "guards.max_skipped_updates=2")
    return situation(named(run, LR=5e-4), '"event":"skipped-update"', "NonFiniteError", FINISHED)


@pytest.fixture
def stalled_worker(run: RunDirectory, situation: Prepares) -> Situation:
    """A run of two workers of which one is stopped; the driver's watch looks on."""
    run.reconfigure(run.config((*ENDLESS, "guards.stall_timeout_s=10")))
    with watching(run):
        process = start_ranks(run, 2)
        stopped = wait_for_beat(run, process, rank=1, num_steps=1)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert process.wait() != 0
    run.reconfigure(run.config(AS_BEFORE))
    expected = ('"event":"stalled"', '"rank":1', '"state":"stopped"', "most recent call first", FINISHED)
    return situation(named(run, TIMEOUT_S=1800), *expected)


@pytest.fixture
def straggler(run: RunDirectory, situation: Prepares) -> Situation:
    """A run of two workers of which one is stopped for most of the time, until the run says so."""
    run.reconfigure(run.config((*ENDLESS, "guards.straggler_every_steps=5")))
    process = start_ranks(run, 2)
    slow = wait_for_beat(run, process, rank=1, num_steps=1)

    def is_named() -> bool:
        for number, duration_s in ((signal.SIGSTOP, 0.05), (signal.SIGCONT, 0.01)):
            os.kill(slow.pid, number)
            time.sleep(duration_s)
        return bool(run.events(Event.STRAGGLER))

    wait_until(is_named, process)
    kill_workers(run, process)
    run.reconfigure(run.config(AS_BEFORE))
    return situation(named(run, WORKERS=1), '"event":"straggler"', '"tokens_per_s"', FINISHED)


@pytest.fixture
def stop_and_preempt(
    run: RunDirectory, corpus: Corpus, tmp_path: Path, situation: Prepares
) -> Iterator[Situation]:
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
        yield situation(named(run), "PreemptedError", FINISHED)
    finally:
        driver.kill()
        waiting.join()
    assert driver.returncode == 75
    assert "cloze resume" in (tmp_path / "driver.log").read_text()


@pytest.fixture
def out_of_memory(run: RunDirectory, run_config: Path, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose network does not fit into any memory."""
    # As it was before its first step.
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    (run.path / "log.jsonl").unlink()
    run = failed_run(run, tmp_path / "large", 37, "model.hidden_size=16777216")
    settings = named(run, GPU="cpu", CONFIG=run_config, OPTIONS="batch.micro_batch_size=2")
    return situation(settings, "OutOfMemoryError", "allocate", "GiB per device", run.path.name)


@pytest.fixture
def trace_a_batch(run: RunDirectory, situation: Prepares) -> Situation:
    """A run of which some steps stand out, and one global batch was left out."""
    SkipLedger(run).add(SkippedStep(at_update=8, data_step=8, loss=9.5, score=12.0))
    lines = ("workers", "target:", "tokens, a line for each sentence", "was a spike")
    return situation(named(run, STEP=7), *lines, "at_update 8, data_step 8")


@pytest.fixture
def roll_back_by_hand(
    run: RunDirectory, killed_run: RunDirectory, situation: Prepares
) -> Iterator[Situation]:
    """A run whose newest checkpoint is not the one to go on from."""
    step = steps_of(run)[0]
    yield situation(named(run, STEP=step, LR=5e-4), f"at step {step} of 60", ".rolled-back", "@60")
    (event,) = run.events(Event.ROLLED_BACK)
    assert (event["step"], len(event["set_aside"])) == (step, len(steps_of(killed_run)) - 1)


@pytest.fixture
def change_a_setting(run: RunDirectory, situation: Prepares) -> Situation:
    """A run that is to go on with another learning rate, and fewer checkpoints."""
    settings = named(run, FREE="checkpoint.keep_last=2", CHANGE="optimizer.lr=5e-4", KEY="optimizer.lr")
    return situation(settings, "optimizer.lr was 0.001, is 0.0005", "config.yaml.1")


@pytest.fixture
def resume_on_other_nodes(run: RunDirectory, situation: Prepares) -> Situation:
    """A run of two workers of which one is left."""
    return situation(named(run, WORKERS=1, ODD=3), '"world_size":2', '"world_size":1', "@60")


@pytest.fixture
def upgrade_during_a_run(run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run that made its last checkpoints on one worker, with another version of a package than the one here."""
    # The newer of the checkpoints that are compared is made on as many workers as the rehearsal has.
    older = steps_of(run)[-1]
    newer = older + 10
    run.reconfigure(run.config(("checkpoint.keep_last=10",)))
    process = start_ranks(run, 1)
    wait_until(lambda: newer in steps_of(run), process)
    kill_workers(run, process)
    (*_, started) = run.events(Event.STARTED)
    version = started["environment"]["packages"]["tokenizers"]
    history = run.history.read_text()
    run.history.write_text(history.replace(f'"tokenizers":"{version}"', '"tokenizers":"0.0.1"'))
    settings = named(run, COPY=tmp_path / "rehearsal", OLDER=older, NEWER=newer)
    return situation(settings, f"tokenizers was 0.0.1, is {version}", "bit for bit the same")


@pytest.fixture
def mlflow_lost(run: RunDirectory, situation: Prepares) -> Situation:
    """A run of which a model was published, and a tracking store that is empty."""
    run.retrack("0" * 32, f"sqlite:///{run.path.parent.resolve()}/mlflow.db", "0")
    published = {"model": "tagger", "version": 7, "alias": "champion", "fingerprint": ""}
    run.record_event(Event.PUBLISHED, **published, step=steps_of(run)[0])
    return situation(named(run, MODEL="tagger"), "MLflow run", "champion", "checkpoint ")


@pytest.fixture
def keep_data_in_a_store(
    run: RunDirectory, prepared: Path, object_store: dict[str, str], tmp_path: Path, situation: Prepares
) -> Situation:
    """A store without data, and a run that reads a preparation's directory."""
    settings = named(run, DATA=prepared, STORE="s3://bucket/corpus", FRESH=tmp_path / "fresh")
    expected = ("s3://bucket/corpus: every file verifies", "fetch s3://bucket/corpus/tokens", "from step")
    return situation(settings, *expected, **object_store)


@pytest.fixture
def publish_a_model(run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run with checkpoints, and a small task."""
    old = steps_of(run)[0]
    (tmp_path / "tune.yaml").write_text(
        f"tasks: {{parity: {write_rows(tmp_path, 40)}}}\nseeds: [1]\n"
        "training: {epochs: 1, batch_size: 8, lr: 1e-3, max_length: 32}\n"
    )
    settings = named(run, OLD=old, NAME="tagger", TASKS="tune.yaml")
    expected = ("champion", f"step-{old:08d}", "scores ")
    return situation(settings, *expected, MLFLOW_TRACKING_URI=run.info.tracking_uri)


@pytest.fixture
def delete_a_document(
    run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path, situation: Prepares
) -> Iterator[Situation]:
    """A preparation with a document that is to go, which a run has read."""
    out, config = tmp_path / "data", tmp_path / "data.yaml"
    shutil.copytree(prepared, out)
    corpus.write(config, out)
    before = TokenStore.open(out)
    every = np.arange(before.num_documents)
    number = exposure_of(run, {before.fingerprint: every}, tmp_path / "finetuned")["documents"][0]["number"]
    document = before.document(number)
    text = " ".join(max(document.text.splitlines(), key=len).split("  ")).strip()
    settings = {"CONFIG": config, "OUT": out, "TEXT": text, "LIST": tmp_path / "takedown.txt"}
    settings |= {"RUNS": run.path.parent, "SCORES": tmp_path / "finetuned"}
    yield situation(settings, document.doc_id, "updates that read them", "first_step")
    after = TokenStore.open(out)
    assert document.doc_id not in after.doc_ids().to_pylist()
    first, second = ({one.path: one.xxh3_128 for one in each.manifest.files} for each in (before, after))
    assert len([name for name in first if name.endswith(".arrow") and first[name] != second[name]]) == 1
    assert after.tokenizer_path.read_bytes() == (prepared / "tokens" / "tokenizer.json").read_bytes()


@pytest.fixture
def move_a_run(
    killed_run: RunDirectory, prepared: Path, tmp_path: Path, situation: Prepares
) -> Iterator[Situation]:
    """A run and its tokens on a file system, and an empty one."""
    old, new = tmp_path / "old", tmp_path / "new"
    run = copy_run(killed_run, old / "runs")
    shutil.copytree(prepared / "tokens", old / "data" / "tokens")
    settings = {"RUN": run.path.name, "OLD": old, "NEW": new, "TOKENS": "data/tokens"}
    yield situation(settings, FINISHED, f"{new}/data/tokens")
    assert RunDirectory(new / "runs" / run.path.name).info.tracking_uri.endswith(f"{new}/runs/mlflow.db")


@pytest.fixture
def disk_full(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path, situation: Prepares) -> Situation:
    """A run whose files may not grow beyond a size, so that no checkpoint could be written any more."""
    limit = f"ulimit -f {LARGEST_FILE_KIB}; "
    run = failed_run(killed_run, tmp_path, 33, "checkpoint.every_steps=2", shell=limit)
    remains = run.checkpoints / ".step-00000099.killed.partial"
    remains.mkdir()
    run.reconfigure(run.config(("checkpoint.every_steps=10",)))
    settings = named(run, DATA=corpus.out.parent)
    return situation(settings, "checkpoint-failed", "File too large", remains.name, FINISHED)


@pytest.fixture
def head_node_gone(run: RunDirectory, without_cluster: Prepares) -> Situation:
    """A run that was submitted to a cluster of which every process was killed at once, as with its machine."""
    shutil.rmtree(run.heartbeats, ignore_errors=True)
    situation = without_cluster(named(run), "lost", "SUCCEEDED", FINISHED)
    verb = ["resume", run.path.name, "--runs-dir", str(run.path.parent), "steps=60"]
    environment = dict(situation.environment)
    submit = ["cloze", "submit", "--", *verb]
    subprocess.run(submit, env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    wait_until(lambda: run.heartbeats.exists() and any(run.heartbeats.iterdir()))
    first = psutil.Process(orjson.loads(Path(environment["CLOZE_LOCAL_CLUSTER"]).read_bytes())["pid"])
    doomed = [first, *first.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, timeout=PATIENCE_S)
    return situation


PAGES = [page for page in map.PAGES if map.situation_of(page) in globals()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_following_the_page_leads_out_of_its_situation(page: Path, request: pytest.FixtureRequest):
    follow(page, request.getfixturevalue(map.situation_of(page)))
