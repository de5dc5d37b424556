"""Make an artefact of every kind: `python -m tests.every_artefact DIRECTORY NUM_CPUS`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.runtime import ray_runtime
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationText
from data_prep.job import prepare
from pipeline.checkpoint.references import resolve_model
from pipeline.run.directory import RunDirectory
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.export import export
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from tests.golden.losses import DETERMINISTIC
from tests.pipeline.ranks import MASKED_LM, free_port, make_run
from tests.pipeline.tune.conftest import Recorder

NETWORK = "{num_layers: 1, hidden_size: 8, num_heads: 2, intermediate_size: 16, max_positions: 32, norm: pre}"
PREPARATION: Mapping[str, Any] = {
    "name": "stories",
    "filters": [{"kind": "unicode"}, {"kind": "pii"}],
    "min_characters": 40,
    "dedup": {"documents": True, "paragraphs": "corpus"},
    "shard_bytes": 12_000,
    "tokenizer": {"kind": "wordpiece", "vocab_size": 512},
}
"""Settings of the preparation without places."""
FINETUNING: Mapping[str, Any] = {
    "name": "moods",
    "training": {"epochs": 1, "batch_size": 8, "lr": 5e-3, "max_length": 16},
    "seeds": [1, 2],
    "num_threads": 1,
}
"""Settings of the fine-tuning without places."""
_PEOPLE = ("the miller", "an old sailor", "Anna", "the night watch", "our neighbour", "a clerk", "the twins")
_DEEDS = ("found", "painted", "sold", "remembered", "counted", "hid", "mended", "carried home", "drew")
_THINGS = ("a lantern", "three apples", "the map of the valley", "an empty boat", "the bell", "a blue coat")
_WHEN = (
    "before the rain came",
    "at noon",
    "in the year of the flood",
    "without a word",
    "twice",
    "for a song",
)
_MOODS = (("a happy end", "1"), ("a sad end", "0"))

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


def write_texts(directory: Path) -> None:
    """Stories in two files of JSON lines, two of them equal and one with an address; a task in SST-2's layout."""
    draw = random.Random(2026)

    def sentence() -> str:
        first = draw.choice(_PEOPLE)
        return f"{first[0].upper()}{first[1:]} {draw.choice(_DEEDS)} {draw.choice(_THINGS)} {draw.choice(_WHEN)}."

    stories = [" ".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(120)]
    stories[7] = stories[70]
    stories[11] += "\nWrite to clerk@example.org, or call 212-555-0143."
    (directory / "stories").mkdir(parents=True)
    for file in range(2):
        lines = (
            json.dumps({"id": f"story-{number}", "text": stories[number]}) + "\n"
            for number in range(file * 60, file * 60 + 60)
        )
        (directory / "stories" / f"stories-{file}.jsonl").write_text("".join(lines))
    (directory / "moods").mkdir()
    for name, count in (("train", 32), ("dev", 16)):
        ends = [draw.choice(_MOODS) for _ in range(count)]
        rows = [f"{sentence()} It was {end}\t{label}\n" for end, label in ends]
        (directory / "moods" / f"{name}.tsv").write_text("".join(["sentence\tlabel\n", *rows]))


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


def start(run: RunDirectory, workers: int, port: int) -> list[subprocess.Popen[bytes]]:
    """The run's ranks."""
    command = [sys.executable, "-m", "pipeline.pretrain", str(run.path)]
    group = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = os.pathsep.join(one for one in sys.path if one)
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]
    return [
        subprocess.Popen(command, env=os.environ | DETERMINISTIC | group | rank | {"PYTHONPATH": path})
        for rank in ranks
    ]


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
    runs = place / "runs"
    checkpoint = str(runs / "whole" / "checkpoints" / f"step-{STEPS:08}")
    tasks = {"moods": {"kind": "sst2", "path": place / "texts" / "moods"}}
    plain = {**FINETUNING, "out": place / "scores", "runs_dir": runs, "tasks": tasks, "save_models": True}
    with Recorder():
        finetune(FinetuneConfig.model_validate(plain), resolve_model(checkpoint, runs))
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
