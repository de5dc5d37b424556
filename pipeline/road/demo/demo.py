"""From text to scores on one machine: docstrings, tokens, pre-training, fine-tuning, and one table at the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import MissingInputError
from cluster.runtime import ray_runtime
from pipeline.config.loading import load_config
from pipeline.road.demo.tasks import FinetuneConfig
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import read_metrics
from pipeline.run.tracking import runs_page
from pipeline.tune.scores import Score

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "demo"
PAGE_FILE = "scores.html"
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
    """The HTML page of the scores, as a file:// URI; empty where it could not be written."""
    seconds: dict[str, float]
    """Wall time of each part."""
    runs_dir: str
    tracking_uri: str
    curves: str
    """Where to look at them in MLflow."""
    tokens_directory: str

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-like data."""
        return asdict(self) | {"scores": [score.model_dump(mode="json") for score in self.scores]}


def run_demo(out: Path, *, kill_a_worker: bool) -> Report:
    """Make everything under `out`, continuing after the finished parts of an earlier, interrupted demo."""
    from data_prep.config import PreparationConfig
    from data_prep.job import prepare
    from pipeline.checkpoint.references import resolve_model
    from pipeline.tune.evaluation_sets import evaluation_texts
    from pipeline.tune.run import finetune
    from pipeline.tune.workload import scores_directory

    out = out.resolve()
    if not CONFIGS.is_dir():
        raise MissingInputError(
            f"The demo's configurations are not at {CONFIGS}.", next_step="run it from a clone: make demo"
        )
    data = load_config(PreparationConfig, CONFIGS / "data.yaml", [f"out={out / 'data'}"])
    settings = load_config(
        PretrainConfig,
        CONFIGS / "pretrain.yaml",
        [f"runs_dir={out / 'runs'}", f"data.stores=[{{path: {out / 'data' / 'tokens'}}}]"],
    )
    tasks = load_config(
        FinetuneConfig,
        CONFIGS / "finetune.yaml",
        [f"out={out / 'scores'}", f"runs_dir={out / 'runs'}", f"tasks.code.store={out / 'data'}"],
    )
    seconds: dict[str, float] = {}
    with ray_runtime("local", num_cpus=max(2, os.cpu_count() or 2)):
        with _timed(seconds, "1/3  data: documents, dedup, tokenizer, tokens"):
            prepared = prepare(data, evaluation_texts=evaluation_texts)
        with _timed(seconds, "2/3  pre-training: a small encoder, masked LM, ZeRO-2 on 2 workers"):
            run, killed = _pretrain(settings, kill_a_worker)
        with _timed(seconds, "3/3  fine-tuning: 3 seeds, from pre-trained and from random weights"):
            pretrained = resolve_model(f"{run.path}@latest", settings.runs_dir)
            page = out / PAGE_FILE
            page.unlink(missing_ok=True)
            scores = finetune(
                tasks, pretrained, replace=True, on_page=partial(page.write_text, encoding="utf-8")
            )
    held_out, train = read_metrics(run, LogKind.HELD_OUT), read_metrics(run)
    return Report(
        documents=prepared.dedup.stats["documents_kept"],
        duplicates=prepared.dedup.stats["duplicates"],
        tokens=prepared.tokens.stats["tokens"],
        run=run.path.name,
        run_id=run.info.run_id,
        steps=train[-1]["step"],
        tokens_per_s=sorted(step["tokens_per_s"] for step in train)[len(train) // 2],
        loss_start=held_out[0]["loss"],
        loss_end=held_out[-1]["loss"],
        loss_error=held_out[-1]["mlm/loss_standard_error"],
        held_out_samples=settings.evaluation.samples,
        killed=killed,
        scores=scores,
        scores_directory=str(scores_directory(tasks, pretrained)),
        page=page.as_uri() if page.is_file() else "",
        seconds=seconds,
        runs_dir=str(settings.runs_dir),
        tracking_uri=run.info.tracking_uri,
        curves=runs_page(run.info.tracking_uri, [run.info.experiment_id]),
        tokens_directory=str(prepared.token_store),
    )


def _pretrain(settings: PretrainConfig, kill_a_worker: bool) -> tuple[RunDirectory, str]:
    """Train a new run, or continue the run of an earlier demo unless a worker is to be killed."""
    from pipeline.pretrain.continuing import train_to_end
    from pipeline.pretrain.launch import create_run, execute

    if not kill_a_worker:
        return train_to_end(settings), ""
    run = create_run(settings)
    killer = _Killer(run, at_step=settings.num_steps // 2)
    execute(run)
    return run, killer.outcome()


class _Killer:
    """Kills one training process with SIGKILL once the run has reached a step, as a failing machine would."""

    def __init__(self, run: RunDirectory, at_step: int) -> None:
        self._run, self._at_step = run, at_step
        self._killed: dict[str, Any] = {}
        threading.Thread(target=self._watch, name="killer", daemon=True).start()

    def outcome(self) -> str:
        """The killed worker and the step at which the run continued."""
        starts = self._run.events(Event.STARTED)
        if not self._killed or len(starts) < 2:
            return "nothing was killed: the run ended first"
        return (
            f"worker {self._killed['rank']} (process {self._killed['pid']}) got SIGKILL after step"
            f" {self._killed['step']}; all workers went on from the checkpoint at step {starts[-1]['step']}"
        )

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_S)
            steps = read_metrics(self._run)
            if steps and steps[-1]["step"] >= self._at_step:
                break
        started = self._run.events(Event.STARTED)[-1]
        worker = started["workers"][-1]
        os.kill(worker["pid"], signal.SIGKILL)
        self._killed = worker | {"step": steps[-1]["step"]}


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    print(f"\n{part}", file=sys.stderr, flush=True)
    started = time.monotonic()
    yield
    seconds[part.split("  ")[1].split(":")[0]] = time.monotonic() - started
