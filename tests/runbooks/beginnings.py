"""What the situations begin with, made once for all pages of a file: a corpus, a run, and a cluster."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.checkpoint.checkpoint import checkpoint_name, list_checkpoints
from pipeline.config.loading import load_config
from pipeline.pretrain.launch import create_run
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from tests.pipeline.process_group import PATIENCE_S, forked_environment
from tests.pipeline.ranks import start_ranks
from tests.runbooks.materials import ROOT, Corpus, copy_run
from tests.surroundings import plain_environment

RAY = """
import ray, sys
from cluster.runtime import ray_runtime
with ray_runtime("local", num_cpus=4):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
"""One cluster for all pages that need one, because starting it takes longer than anything that they do."""


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
    assert not (run.checkpoints / checkpoint_name(settings.num_steps)).exists()
    return run


@pytest.fixture
def run(killed_run: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of the killed run."""
    return copy_run(killed_run, tmp_path / "runs")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """An environment in which `cloze` finds a running Ray cluster of its own."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    path = [str(forked_environment() / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = plain_environment() | {
        "PATH": os.pathsep.join(path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    process = subprocess.Popen(
        ["python", "-c", RAY],
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
