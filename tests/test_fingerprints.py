"""A fingerprint holds no place and no time: artefacts made twice, with all that may differ different.

`python -m tests.test_fingerprints DIRECTORY NUM_CPUS` makes a preparation, runs, scores and exports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

KINDS = {"documents", "dedup", "tokenizer", "tokens", "checkpoint", "scores", "export"}
"""Some of what is made. The recorded values of `tests/golden/` are made elsewhere each time, by every step of a
preparation."""
ANOTHER_HOST = """
import getpass, os, platform, socket
getpass.getuser = lambda: "somebody"
platform.node = socket.gethostname = lambda: "another-host"
"""
"""What Python runs at its start in the second place, in Ray's workers and training ranks too."""
FIRST = {"PYTHONHASHSEED": "1", "MALLOC_PERTURB_": "85", "TZ": "UTC"}
# Memory that is used without having been written looks different.
SECOND = {"PYTHONHASHSEED": "2", "MALLOC_PERTURB_": "170", "TZ": "Asia/Kathmandu", "LANG": "C", "USER": "x"}
NETWORK = "{num_layers: 1, hidden_size: 8, num_heads: 2, intermediate_size: 16, max_positions: 32, norm: pre}"
LENGTHS = ("steps=4", "schedule.warmup_steps=2", "checkpoint={every_steps: 2, keep_last: 9}")
RUNS = {
    "whole": (1, "{kind: mlm}", ("zero.stage=2", "ema={decay: 0.9}")),
    # Its parameters do not share out evenly between two workers.
    "sharded": (
        2,
        "{kind: rtd}",
        ("zero.stage=3", "cluster.workers=2", "checkpoint.directory={place}/elsewhere"),
    ),
}
"""By name: workers, objective, further settings."""
FINETUNING: Mapping[str, Any] = {
    "name": "moods",
    "training": {"epochs": 1, "batch_size": 8, "lr": 5e-3, "max_length": 16},
    "seeds": [1, 2],
    "num_threads": 1,
    "save_models": True,
}


def train(place: Path) -> None:
    """Each of RUNS, one after the other."""
    from tests.golden.losses import DETERMINISTIC
    from tests.pipeline.ranks import make_run

    for name, (workers, objective, overrides) in RUNS.items():
        settings = (one.replace("{place}", str(place.resolve())) for one in overrides)
        store = place / "data" / "tokens"
        run = make_run(place, store, name, *LENGTHS, *settings, objective=objective, model=NETWORK)
        launcher = [
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={workers}",
        ]
        command = [sys.executable, "-m", *launcher, "-m", "pipeline.pretrain", str(run.path)]
        subprocess.run(command, env=os.environ | DETERMINISTIC, check=True)


def make_everything(place: Path, num_cpus: int) -> None:
    from cluster.runtime import ray_runtime
    from data_prep.job import prepare
    from pipeline.checkpoint.references import resolve_model
    from pipeline.tune.config import FinetuneConfig
    from pipeline.tune.export import export
    from pipeline.tune.run import finetune
    from tests.data_prep.conftest import small_config, write_corpus
    from tests.pipeline.tune.conftest import Recorder, write_sst2

    with ray_runtime("local", num_cpus=num_cpus):
        prepare(small_config(write_corpus(place / "corpus"), place / "data"))
    train(place)
    runs = place / "runs"
    checkpoint = str(runs / "whole" / "checkpoints" / "step-00000004")
    tasks = {"moods": {"kind": "sst2", "path": write_sst2(place / "moods", 32, 16)}}
    plain = {**FINETUNING, "out": place / "scores", "runs_dir": runs, "tasks": tasks}
    with Recorder():
        finetune(FinetuneConfig.model_validate(plain), resolve_model(checkpoint, runs))
    for weights in ("model", "ema"):
        export(checkpoint, place / "exported" / weights, runs_dir=runs, weights=weights)


def start(
    directory: Path, place: Path | str, num_cpus: int, environment: Mapping[str, str], umask: int
) -> Any:
    """Start making everything, in `place` as seen from `directory`."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.test_fingerprints", str(place), str(num_cpus)]
    paths = os.pathsep.join([environment.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])
    whole = {**os.environ, **environment, "PYTHONPATH": paths}
    with (directory / "output").open("wb") as output:
        return subprocess.Popen(command, cwd=directory, env=whole, umask=umask, stdout=output, stderr=output)


def manifests(place: Path) -> dict[str, dict[str, Any]]:
    """By an artefact's place in `place`, its manifest."""
    paths = sorted(place.rglob("manifest.json"))
    return {str(path.parent.relative_to(place)): orjson.loads(path.read_bytes()) for path in paths}


def fingerprinted(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint, and what it is made of."""
    return {
        **{name: manifest[name] for name in ("kind", "config", "fingerprint")},
        "inputs": [(entry["kind"], entry["fingerprint"]) for entry in manifest["inputs"]],
        "files": {entry["path"]: entry["xxh3_128"] for entry in manifest["files"]},
    }


def test_artefacts_made_at_another_place_and_time_have_the_same_fingerprints(
    tmp_path_factory: pytest.TempPathFactory,
):
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two") / "further" / "down"
    customised = tmp_path_factory.mktemp("site")
    (customised / "sitecustomize.py").write_text(ANOTHER_HOST)
    elsewhere = {**SECOND, "PYTHONPATH": str(customised), "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    processes = (
        start(first / "cwd", first / "made", 1, FIRST, 0o022),
        start(second / "cwd", "other", 2, elsewhere, 0o077),
    )
    for directory, process in zip((first, second), processes, strict=True):
        assert process.wait() == 0, (directory / "cwd" / "output").read_text()[-3000:]
    here, there = manifests(first / "made"), manifests(second / "cwd" / "other")
    assert {manifest["kind"] for manifest in here.values()} >= KINDS
    assert here.keys() == there.keys()
    assert {manifest["created_by"]["host"] for manifest in there.values()} == {"another-host"}
    for name in here:
        assert fingerprinted(here[name]) == fingerprinted(there[name]), name


if __name__ == "__main__":
    make_everything(Path(sys.argv[1]), int(sys.argv[2]))
