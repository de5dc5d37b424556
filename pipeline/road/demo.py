"""The demo: a road on one machine, from docstrings to scores on tasks that are made from held-out docstrings."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from cluster.artefacts.errors import MissingInputError
from data_prep.token_store import TokenStore
from pipeline.road.docstrings import write_rows
from pipeline.road.run import Finished, commit_report, run_stages, stages_of
from pipeline.road.stages import RoadConfig, StageConfig, load_stages
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import read_metrics

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "demo"
_POLL_S = 0.2


def run_demo(out: Path, *, kill_a_worker: bool) -> tuple[Finished, Path, str]:
    """Make everything under `out`, continuing after the finished stages of an earlier, interrupted demo.

    Returns:
        What the stages made, the page of the road, and in words the worker that was killed; empty without a kill.
    """
    if not CONFIGS.is_dir():
        raise MissingInputError(
            f"The demo's configurations are not at {CONFIGS}.", next_step="run it from a clone: make demo"
        )
    # What is printed to be typed next holds in every directory.
    out = out.resolve()
    road = demo_road(out)
    loaded = load_stages(road, made=[out / "tasks"])
    found, killed = Finished(), ""

    def write_tasks() -> None:
        write_rows(TokenStore.open(found.stores[0]), loaded.pretrain.data.held_out, out / "tasks")

    def train_and_kill(settings: PretrainConfig) -> RunDirectory:
        nonlocal killed
        run, killed = _train_and_kill(settings)
        return run

    stages = stages_of(road, loaded, found, replace=True, train=train_and_kill if kill_a_worker else None)
    stages.insert(-1, ("tasks: rows of held-out docstrings", write_tasks))
    run_stages(stages, loaded, found, typed="cloze demo", address="local")
    return found, commit_report(road, found), killed


def demo_road(out: Path) -> RoadConfig:
    """The road of `configs/demo`, with everything below one directory."""
    runs_dir = str(out / "runs")
    rows = {
        f"tasks.{task}.{side}": str(out / "tasks" / task / f"{side}.jsonl")
        for task in ("code", "word_order")
        for side in ("train", "evaluation")
    }
    stores = [{"path": str(out / "data" / "tokens")}]
    return RoadConfig(
        name="report",
        out=out,
        data=(StageConfig(config=CONFIGS / "data.yaml", settings={"out": str(out / "data")}),),
        pretrain=StageConfig(
            config=CONFIGS / "pretrain.yaml", settings={"runs_dir": runs_dir, "data.stores": stores}
        ),
        finetune=(
            StageConfig(
                config=CONFIGS / "finetune.yaml",
                settings={"out": str(out / "scores"), "runs_dir": runs_dir, **rows},
            ),
        ),
    )


def _train_and_kill(settings: PretrainConfig) -> tuple[RunDirectory, str]:
    """Train a new run, and kill one of its processes with SIGKILL half-way, as a failing machine would.

    Returns:
        The run, and in words which worker was killed and where the run continued.
    """
    from pipeline.pretrain.launch import create_run, execute

    run, killed = create_run(settings), {}

    def kill() -> None:
        while not (steps := read_metrics(run)) or steps[-1]["step"] < settings.num_steps // 2:
            time.sleep(_POLL_S)
        worker = run.events(Event.STARTED)[-1]["workers"][-1]
        os.kill(worker["pid"], signal.SIGKILL)
        killed.update(worker, step=steps[-1]["step"])

    threading.Thread(target=kill, name="killer", daemon=True).start()
    execute(run)
    starts = run.events(Event.STARTED)
    if not killed or len(starts) < 2:
        return run, "nothing was killed: the run ended first"
    return run, (
        f"worker {killed['rank']} (process {killed['pid']}) got SIGKILL after step {killed['step']};"
        f" all workers continued from the checkpoint at step {starts[-1]['step']}"
    )
