"""Trainings in Ray workers of their own."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psutil
import pytest
from safetensors.torch import load_file

from cluster import progress
from cluster.artefacts.errors import ClozeError, PreemptedError
from cluster.artefacts.manifest import read_manifest
from cluster.runtime import ray_runtime
from pipeline.run.tracking import connect, tracking_uri
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.run import finetune
from pipeline.tune.scores import IN_PROGRESS
from tests.pipeline.tune.conftest import TRAINING, config_in, scratch_in, write_sst2, write_tokenizer


@pytest.fixture(scope="module")
def ray(forked_python):
    with ray_runtime(num_cpus=2):
        yield


def make_config(folder: Path, name: str, **changes) -> FinetuneConfig:
    """Four trainings from random weights, of two learning rates and two seeds."""
    plain = {
        "training": TRAINING | {"epochs": 2},
        "search": {"lr": [1e-3, 5e-3]},
        "scratch": scratch_in(folder),
        "save_every_s": 0,
    }
    return config_in(folder, name=name, **plain | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("side-by-side")
    write_sst2(found / "SST-2", 64, 45)
    write_tokenizer(found / "tokenizer.json")
    return found


def test_trainings_side_by_side_are_those_of_one_after_another(ray, folder):
    one = finetune(make_config(folder, "one"), None)
    two = finetune(make_config(folder, "two", side_by_side=2), None)
    assert one == two
    assert [(score.choice["lr"], score.seed) for score in one] == [(1e-3, 1), (1e-3, 2), (5e-3, 1), (5e-3, 2)]
    manifests = [read_manifest(folder / "finetuned" / name / "random") for name in ("one", "two")]
    assert manifests[0].fingerprint == manifests[1].fingerprint


def test_worker_killed_in_the_middle_of_a_training_costs_only_updates(ray, folder, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0)
    long = TRAINING | {"epochs": 40}
    config = make_config(folder, "killed", side_by_side=2, training=long)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_a_worker, folder / "finetuned")
        scores = finetune(config, None)
        assert killed.result() > 0
    assert len(scores) == 4
    shown = [(int(done), int(total)) for done, total in re.findall(r"(\d+)/(\d+)", capsys.readouterr().err)]
    [total] = {total for _, total in shown}
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert shown[-1][0] == total
    assert any(done % (total // 4) for done, _ in shown), "progress is shown within a training"
    assert finetune(make_config(folder, "whole", training=long), None) == scores


def kill_a_worker(out: Path) -> int:
    """SIGKILL a worker when a training has saved its state; the number of its process."""
    # The file is small until it holds weights.
    while not any(path.stat().st_size > 10_000 for path in out.rglob(f"{IN_PROGRESS}/r*.safetensors")):
        time.sleep(0.01)
    processes = psutil.Process().children(recursive=True)
    worker = next(each for each in processes if " ".join(each.cmdline()).startswith("ray::TrialWorker"))
    worker.kill()
    return worker.pid


def test_sigterm_lets_all_workers_save_and_the_same_command_goes_on(ray, folder):
    changes = {
        "side_by_side": 2,
        "training": TRAINING | {"epochs": 150},
        "search": {"lr": [1e-3]},
        "save_every_s": 3600,
        "log_every_updates": 4,
    }
    config = make_config(folder, "stopped", runs_dir=folder / "stopped-runs", **changes)
    ended = Event()
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop_when_both_have_trained, config, ended)
        try:
            with pytest.raises(PreemptedError):
                finetune(config, None)
        finally:
            ended.set()
        stopped.result()
    saved = [*map(load_file, (folder / "finetuned/stopped").rglob(f"{IN_PROGRESS}/*.safetensors"))]
    assert [bool(tensors) for tensors in saved] == [True, True]
    assert [run.info.status for run in tracked(config)] == ["KILLED"] * 2
    scores = finetune(config, None)
    assert [run.info.status for run in tracked(config)] == ["FINISHED"] * 2
    whole = make_config(folder, "unstopped", **changes | {"side_by_side": 1})
    assert finetune(whole, None) == scores


def stop_when_both_have_trained(config: FinetuneConfig, ended: Event) -> None:
    """SIGTERM to this process when both trainings have logged losses."""
    # A training has a file once `start_run` has made the tables of the store; two processes must not make them at once.
    while (
        len([*config.out.rglob(f"{IN_PROGRESS}/*.safetensors")]) < 2
        or sum(bool(run.data.metrics) for run in tracked(config)) < 2
    ):
        assert not ended.wait(0.05), "ended before it could be stopped"
    os.kill(os.getpid(), signal.SIGTERM)


def tracked(config: FinetuneConfig) -> list:
    client = connect(tracking_uri(config.runs_dir))
    return client.search_runs([found.experiment_id for found in client.search_experiments()])


def test_failing_training_is_answered_as_if_alone(ray, folder):
    config = make_config(folder, "diverging", side_by_side=2, search={"lr": [1e38]})
    with pytest.raises(ClozeError, match="not finite"):
        finetune(config, None)
