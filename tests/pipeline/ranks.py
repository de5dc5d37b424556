"""Training on real gloo ranks without Ray, for tests that compare runs: seconds instead of half a minute."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import orjson

from cluster.artefacts.manifest import seal
from pipeline.config.loading import load_config
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory, RunInfo
from tests.pipeline.process_group import PATIENCE_S, Group, forked, run_group
from tests.surroundings import plain_environment

Found = TypeVar("Found")
CONFIG = """
name: tiny
runs_dir: {runs_dir}
data: {{stores: [{{path: {store}}}], held_out: 0.1}}
model: {model}
objective: {objective}
batch: {{sequence_length: 32, samples: 16, micro_batch_size: 4}}
steps: 12
optimizer: {{lr: 1e-3}}
schedule: {{warmup_steps: 3}}
evaluation: {{every_steps: 6, samples: 20}}
checkpoint: {{every_steps: 4, keep_last: 2}}
zero: {{stage: 2}}
cluster: {{workers: 1}}
"""


MASKED_LM = "{kind: mlm, rate: 0.3}"
TRANSFORMER = (
    "{num_layers: 2, hidden_size: 32, num_heads: 2, intermediate_size: 64, max_positions: 32, norm: pre}"
)


def make_config(
    directory: Path, store: Path, *overrides: str, objective: str = MASKED_LM, model: str = TRANSFORMER
) -> PretrainConfig:
    """The tiny configuration, with runs under `directory`; `objective` and `model` are YAML."""
    path = directory / "tiny.yaml"
    text = CONFIG.format(runs_dir=directory / "runs", store=store, objective=objective, model=model)
    path.write_text(text)
    return load_config(PretrainConfig, path, overrides)


def make_run(
    directory: Path,
    store: Path,
    name: str,
    *overrides: str,
    objective: str = MASKED_LM,
    model: str = TRANSFORMER,
) -> RunDirectory:
    """A run that no tracking store knows."""
    config = make_config(directory, store, *overrides, objective=objective, model=model)
    run = RunDirectory(config.runs_dir / name)
    run.create(RunInfo(name=name, run_id="0" * 32, tracking_uri=""), config)
    return run


def tied(run: RunDirectory, tracking_uri: str, run_id: str, name: str) -> RunDirectory:
    """Tie a directory to an MLflow run, as `run.json` does."""
    info = RunInfo(name=name, run_id=run_id, tracking_uri=tracking_uri)
    run.info_file.write_bytes(orjson.dumps(seal(info.model_dump(mode="json"))))
    return run


def start_ranks(run: RunDirectory, workers: int) -> Group:
    """That many ranks on this run, as `torchrun -m pipeline.pretrain` starts them; does not wait."""
    return Group("pipeline.pretrain", [run.path], workers)


def train(run: RunDirectory, workers: int) -> str:
    """Run to the end; returns what the ranks printed."""
    return run_group("pipeline.pretrain", [run.path], workers)


def train_by_torchrun(run: RunDirectory, workers: int) -> None:
    """The same, as an operator without Ray does it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [*torchrun, f"--log-dir={run.path.parent / 'torchrun'}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, "-m", "pipeline.pretrain", str(run.path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Driver:
    """`cloze resume` of a run, in a forked process without settings of this one."""

    def __init__(self, run: RunDirectory, log: Path) -> None:
        self.log = log
        # The cluster of this process asks for a token where an earlier test has set one.
        token = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
        self.environment = plain_environment() | token
        command = [str(Path(sys.executable).with_name("cloze")), "resume", str(run.path)]
        with open(os.devnull, "rb") as nothing, log.open("wb") as stream:
            streams = (nothing.fileno(), stream.fileno(), stream.fileno())
            self.process = forked(command, self.environment, streams)

    @property
    def output(self) -> str:
        """The end of what it printed."""
        return self.log.read_text()[-3000:]

    def wait_for(self, condition: Callable[[], Found | None]) -> Found:
        """Poll until the condition finds something, and return that."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := condition()) is None:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)
        return found


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
