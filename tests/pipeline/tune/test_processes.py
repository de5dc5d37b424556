"""Fine-tuning by several processes: each with all weights, against one process; sharded by DeepSpeed ZeRO; or each with
a training of its own in a Ray worker."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

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
from tests.pipeline.tune.launched_run import ALONE, all_cases, launch


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, Any]:
    """What two processes computed in all cases, and in some of them this process."""
    found: dict[str, Any] = {}
    for precision in ("fp32", "bf16"):
        found |= launch(tmp_path_factory.mktemp(precision), precision)
    alone = all_cases(tmp_path_factory.mktemp("alone"), "fp32", ALONE)
    assert (alone["processes"], found["processes"]) == (1, 2)
    return found | {f"{name}, alone": alone[name] for name in ALONE}


@pytest.mark.parametrize(
    ("several", "plain"),
    [
        *((name, f"{name}, alone") for name in ALONE),
        ("stage 1", "plain"),
        ("stage 3", "plain"),
        ("stage 2, lora", "plain, lora"),
        ("stage 2, bf16", "plain, bf16"),
    ],
)
def test_scores_are_those_of_one_process_without_zero_up_to_summation_order(cases, several, plain):
    one, two = cases[plain], cases[several]
    assert one["examples"] == two["examples"] == (13 if several in ("answers", "summaries") else 131)
    assert cases["plain"]["metrics"][-1]["accuracy"] > 0.9
    # Another order of summation changes roundings to bfloat16, too, and with them a few choices between near ties,
    # of which none is left at the end.
    near, ties = (1e-3, 0.04) if "bf16" in plain else (1e-5, 0.0)
    for epoch, other in zip(one["metrics"], two["metrics"], strict=True):
        assert epoch == pytest.approx(other, abs=ties)
    assert one["metrics"][-1] == pytest.approx(two["metrics"][-1], abs=1e-12)
    assert one["losses"] == pytest.approx(two["losses"], abs=near)
    for left, right in zip(one["predictions"], two["predictions"], strict=True):
        assert left == pytest.approx(right, abs=10 * near)
    assert one["weights"] == pytest.approx(two["weights"], abs=10 * near)
    assert bool(one["weights"]) == (several in ("plain", "stage 1", "stage 3", "stage 2, bf16"))


def test_zero_3_trains_in_a_process_that_no_launcher_started(tmp_path):
    assert launch(tmp_path, "alone", processes=1)["losses"]


def test_stopped_sharded_training_is_bit_identical_to_an_uninterrupted_one(cases):
    assert cases["stage 3 -> stage 3"] == cases["stage 3"]


@pytest.mark.parametrize("change", ["stage 1 -> plain", "plain -> stage 1"])
def test_stopped_training_continues_in_another_stage(cases, change):
    assert cases[change]["losses"] == pytest.approx(cases["plain"]["losses"], abs=1e-5)
    assert cases[change]["metrics"] == cases["plain"]["metrics"]


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
        len([*config.out.rglob(f"{IN_PROGRESS}/*.json")]) < 2
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
