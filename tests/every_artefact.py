"""Make an artefact of every kind: `python -m tests.every_artefact DIRECTORY NUM_CPUS`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.runtime import ray_runtime
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationText
from data_prep.job import prepare
from pipeline.checkpoints.references import resolve_model
from pipeline.exporting.exporting import export
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.run import finetune
from pipeline.finetune.scores import read_scores
from tests.pipeline.earlier.write import FINETUNING, NETWORK, PREPARATION, start, write_texts
from tests.pipeline.finetune.conftest import Recorder
from tests.pipeline.ranks import MASKED_LM, free_port, make_run

STEPS = 4
LENGTHS = (f"steps={STEPS}", "schedule.warmup_steps=2", "checkpoint={every_steps: 2, keep_last: 9}")
RUNS = {
    "whole": (1, MASKED_LM, ("zero.stage=2", "ema={decay: 0.9}")),
    # Its parameters do not share out evenly between two workers.
    "sharded": (
        2,
        "{kind: rtd}",
        ("zero.stage=3", "cluster.workers=2", "checkpoint.directory={place}/elsewhere"),
    ),
}
"""By name: workers, objective, further settings."""


def prepare_stories(place: Path, num_cpus: int) -> None:
    """With everything that a preparation can do about repeated texts and those of evaluation sets."""
    file = place / "texts" / "moods" / "dev.tsv"

    def evaluation_texts(config: Any) -> Iterator[EvaluationText]:
        lines = file.read_text().splitlines()[1:]
        return (
            EvaluationText("moods", f"dev-{n}", line.split("\t")[0], file) for n, line in enumerate(lines)
        )

    source = {"kind": "json_lines", "name": "stories", "id_field": "id", "text_field": "text"}
    stories = str(place / "texts" / "stories" / "*.jsonl")
    dedup = {"documents": True, "paragraphs": "corpus", "near": {"verify": True, "threshold": 0.7}}
    plain = {
        **PREPARATION,
        "out": place / "data",
        "sources": [{**source, "paths": [stories]}],
        "dedup": dedup,
        "decontaminate": {"tasks": ["moods"], "ngram": 8, "min_words": 6, "action": "cut"},
    }
    with ray_runtime("local", num_cpus=num_cpus):
        prepare(PreparationConfig.model_validate(plain), evaluation_texts=evaluation_texts)


def train(place: Path) -> None:
    """Each of RUNS, all at once. FRESH_MEMORY is the byte that memory holds before it is written."""
    os.environ["MALLOC_PERTURB_"] = os.environ.get("FRESH_MEMORY", "0")
    running = []
    for name, (workers, objective, overrides) in RUNS.items():
        settings = (one.replace("{place}", str(place.resolve())) for one in overrides)
        store = place / "data" / "tokens"
        run = make_run(place, store, name, *LENGTHS, *settings, objective=objective, model=NETWORK)
        running += start(run, workers, free_port())
    assert [rank.wait() for rank in running] == [0] * len(running)


def use(place: Path) -> None:
    """Fine-tune a checkpoint, and export it, its average and a fine-tuned network."""
    runs, recorder = place / "runs", Recorder()
    checkpoint = str(runs / "whole" / "checkpoints" / f"step-{STEPS:08}")
    tasks = {"moods": {"kind": "sst2", "path": place / "texts" / "moods"}}
    plain = {**FINETUNING, "out": place / "scores", "runs_dir": runs, "tasks": tasks, "save_models": True}
    track: Any = recorder
    finetune(FinetuneConfig.model_validate(plain), resolve_model(checkpoint, runs), track=track)
    (scores,) = (place / "scores").glob("*/*")
    assert len(read_scores(scores)) == len(FINETUNING["seeds"])
    export(checkpoint, place / "exported" / "model", runs_dir=runs)
    export(checkpoint, place / "exported" / "average", runs_dir=runs, weights="ema")


if __name__ == "__main__":
    place, num_cpus = Path(sys.argv[1]), int(sys.argv[2])
    write_texts(place / "texts")
    prepare_stories(place, num_cpus)
    train(place)
    use(place)
