"""Training on real gloo ranks without Ray, for tests that compare runs: seconds instead of half a minute."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from cluster.artefacts import errors as typed_errors
from cluster.artefacts.manifest import seal
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, MODEL_FILE, list_checkpoints
from pipeline.config.loading import load_config
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory, RunInfo
from tests.pipeline.process_group import Group, on_ranks

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
    directory: Path, store: Path | str, *overrides: str, objective: str = MASKED_LM, model: str = TRANSFORMER
) -> PretrainConfig:
    """The tiny configuration, with runs under `directory`; `objective` and `model` are YAML."""
    path = directory / "tiny.yaml"
    text = CONFIG.format(runs_dir=directory / "runs", store=store, objective=objective, model=model)
    path.write_text(text)
    return load_config(PretrainConfig, path, overrides)


def make_run(
    directory: Path,
    store: Path | str,
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
    return Group("pipeline.pretrain", [run.path], workers).finish()


class Ending(NamedTuple):
    """How a run ended: `ended`, or an error's class with its message and notes."""

    name: str
    said: tuple[str, ...] = ()


def train_alone(runs: Sequence[RunDirectory]) -> list[str]:
    """Train every run as far as it goes, one after the other in one process, which takes many times as long to start as
    such a run; returns how each ended, if only by typed errors."""
    (endings,) = on_ranks(train_here, [run.path for run in runs], workers=1)
    assert [end for end in endings if end.name != "ended" and not hasattr(typed_errors, end.name)] == []
    return [end.name for end in endings]


def train_here(paths: Sequence[Path | str]) -> list[Ending]:
    """Train these runs in this process, a group of one rank."""
    import torch.distributed as dist

    from pipeline.pretrain.launch import run_rank

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = []
    for path in paths:
        try:
            run_rank(Path(path), Rank(rank=0, world_size=1, local_rank=0, num_threads=1))
            found.append(Ending("ended"))
        except Exception as error:
            found.append(Ending(type(error).__name__, (str(error), *getattr(error, "__notes__", []))))
    return found


def final_state(run: RunDirectory) -> dict[str, Any]:
    """Weights and sharded optimizer state of the last checkpoint, by name."""
    import torch
    from safetensors.torch import load_file

    def tensors(value: Any, name: str) -> dict[str, torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return {name: value}
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        return {inner: one for key, item in items for inner, one in tensors(item, f"{name}/{key}").items()}

    last = list_checkpoints(run.checkpoints)[-1]
    state: dict[str, Any] = dict(load_file(last / MODEL_FILE))
    for path in sorted((last / DEEPSPEED_DIRECTORY).glob("*optim_states.pt")):
        state |= tensors(torch.load(path, weights_only=False), path.name)
    return state


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
