"""What the situations of several pages begin with: a corpus, a run, a cluster, a store."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.checkpoint.checkpoint import checkpoint_name, list_checkpoints
from pipeline.config.loading import load_config
from pipeline.pretrain.launch import create_run
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from tests.object_store import running_store
from tests.pipeline.process_group import PATIENCE_S, forked_environment, wait_until
from tests.pipeline.ranks import start_ranks
from tests.runbooks.materials import (
    ROOT,
    Corpus,
    Prepares,
    Situation,
    copy_run,
    kill_workers,
    with_path,
    write_run,
)
from tests.surroundings import plain_environment

RAY = """
import ray, sys
from cluster.runtime import ray_runtime
with ray_runtime("local", num_cpus=4):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
"""One cluster for all pages that need one, because starting it takes longer than anything that they do."""


@pytest.fixture
def situation(corpus: Corpus, tmp_path: Path) -> Prepares:
    """Makes the situation of a page."""

    def make(settings: Mapping[str, object], *expected: str, **variables: str) -> Situation:
        return Situation(tmp_path, settings, {**corpus.environment, **variables}, expected)

    return make


@pytest.fixture
def without_cluster(corpus: Corpus, tmp_path: Path) -> Iterator[Prepares]:
    """Makes the situation of a page on a machine without a cluster: it starts a local one, which ends with the test."""
    inherited = {name: value for name, value in corpus.environment.items() if not name.startswith("RAY_")}
    environment = inherited | {"CLOZE_LOCAL_CLUSTER": str(tmp_path / "cluster.json")}
    yield lambda settings, *expected: Situation(tmp_path, settings, environment, expected)
    subprocess.run(["cloze", "stop", "--cluster"], env=environment, check=True, capture_output=True)


@pytest.fixture
def object_store(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables that lead to an empty store."""
    with running_store():
        found = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        yield found | {"CLOZE_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def scratch() -> Iterator[str]:
    """A short path: Ray's sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as place:
        yield place


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
    return Corpus(config, place / "data", {**ray_cluster, "PYTHONPATH": str(package.parent)})


@pytest.fixture(scope="session")
def prepared(corpus: Corpus) -> Path:
    """The corpus on disk. To be copied, not changed."""
    command = ["cloze", "data", "prepare", str(corpus.config), "max_rejects=1", "--json"]
    done = subprocess.run(command, env=dict(corpus.environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return corpus.out


@pytest.fixture(scope="session")
def run_config(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of the killed run."""
    path = tmp_path_factory.mktemp("killed") / "run.yaml"
    write_run(path, prepared / "tokens", f"{path.parent}/runs", "cluster: {workers: 1}")
    return path


@pytest.fixture(scope="session")
def killed_run(run_config: Path) -> RunDirectory:
    """A run with checkpoints of which both workers got SIGKILL half-way. To be copied, not changed."""
    settings = load_config(PretrainConfig, run_config)
    run = create_run(settings)
    process = start_ranks(run, 2)
    wait_until(lambda: len(list_checkpoints(run.checkpoints)) >= 2, process)
    kill_workers(run, process)
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
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment = plain_environment() | {"OMP_NUM_THREADS": "1"} | variables
    environment = with_path(environment, forked_environment() / "bin", Path(sys.executable).parent)
    process = subprocess.Popen(
        ["python", "-c", RAY], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "Ray did not start"
        yield environment | {"RAY_ADDRESS": address}
    finally:
        process.communicate(timeout=PATIENCE_S)
