"""The demo: a road on one machine, from docstrings to scores on tasks that are made from held-out docstrings."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import MissingInputError
from data_prep.token_store import TokenStore
from pipeline.road.docstrings import write_rows
from pipeline.road.run import Finished, commit_report, run_stages, stages_of
from pipeline.road.stages import RoadConfig, StageConfig, load_stages
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.run.tracking import runs_page
from pipeline.tune.scores import Score

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "demo"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Report:
    """The results of the demo."""

    documents: int
    duplicates: int
    tokens: int
    run: str
    run_id: str
    steps: int
    tokens_per_s: float
    """Median over steps."""
    loss_start: float
    """Held-out masked-LM loss before training, nats per predicted token."""
    loss_end: float
    loss_error: float
    """Standard error of `loss_end`, from `held_out_samples` samples."""
    held_out_samples: int
    killed: str
    """The killed worker and the step at which the run continued; empty without a kill."""
    scores: list[Score]
    scores_directory: str
    page: str
    """The page of the road, with the scores, as a file:// URI."""
    seconds: dict[str, float]
    """Wall time of each stage."""
    runs_dir: str
    tracking_uri: str
    curves: str
    """How to look at the curves in MLflow."""
    tokens_directory: str

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-like data."""
        return asdict(self) | {"scores": [score.model_dump(mode="json") for score in self.scores]}


def run_demo(out: Path, *, kill_a_worker: bool) -> Report:
    """Make everything under `out`, continuing after the finished stages of an earlier, interrupted demo."""
    out = out.resolve()
    if not CONFIGS.is_dir():
        raise MissingInputError(
            f"The demo's configurations are not at {CONFIGS}.", next_step="run it from a clone: make demo"
        )
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
    assert found.run is not None, "a road has a run"
    page, run = commit_report(road, found), found.run
    held_out, train = read_metrics(run, LogKind.HELD_OUT), read_metrics(run)
    return Report(
        documents=found.prepared[0].dedup.stats["documents_kept"],
        duplicates=found.prepared[0].dedup.stats["duplicates"],
        tokens=found.prepared[0].tokens.stats["tokens"],
        run=run.path.name,
        run_id=run.info.run_id,
        steps=train[-1]["step"],
        tokens_per_s=statistics.median_high(step["tokens_per_s"] for step in train),
        loss_start=held_out[0]["loss"],
        loss_end=held_out[-1]["loss"],
        loss_error=held_out[-1]["mlm/loss_standard_error"],
        held_out_samples=loaded.pretrain.evaluation.samples,
        killed=killed,
        scores=found.all_scores,
        scores_directory=str(next(iter(found.scores))),
        page=page.resolve().as_uri(),
        seconds=found.seconds,
        runs_dir=str(loaded.pretrain.runs_dir),
        tracking_uri=run.info.tracking_uri,
        curves=runs_page(run.info.tracking_uri, [run.info.experiment_id]),
        tokens_directory=str(found.stores[0]),
    )


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
        f" all workers went on from the checkpoint at step {starts[-1]['step']}"
    )
