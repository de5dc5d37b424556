"""Processor time and memory of every stage of a preparation as the corpus grows, on documents in several languages.

Everything is switched on: the filters of `web.yaml`, near-duplicates, repeated paragraphs and decontamination.
Documents are shuffled sentences, so that a larger corpus is not one with more copies.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import yaml

from cluster.artefacts.shard_records import LOG_NAME
from data_prep.decontaminate.config import EvaluationText
from data_prep.layout import WORK
from tests.benchmarks import mixture

SIZES = tuple(int(own) for own in os.environ.get("CLOZE_BENCHMARK_SIZES", "64 256").split())
"""MB of text."""
SHARD_BYTES = 16_000_000
EVALUATION_TEXTS = 2000
NUM_PROCESSES = 1
WEB = Path(__file__).parents[2] / "configs" / "filters" / "web.yaml"
SETTINGS: dict[str, dict[str, Any]] = {
    "language": {"allowed": ["en", "fr", "ko", "ro", "zh"]},
    "gopher_quality": {"min_mean_word_length": 0.5, "min_stop_words": 0},
}
"""For the languages of the mixture, so that documents reach the last filter."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage, or a step of one, at one size."""

    processor_seconds: float
    peak_bytes: int
    """Of the task that takes most."""


def run() -> Iterator[str]:
    """A line per stage and step."""
    if not mixture.texts():
        print("growth is left out: CLOZE_DATA names no folder with texts", file=sys.stderr)
        return
    found = {size: _prepare(size * 1_000_000) for size in SIZES}
    sizes = ", ".join(map(str, SIZES))
    for name in found[SIZES[0]]:
        stages = {size: found[size][name] for size in SIZES if name in found[size]}
        times = ", ".join(f"{1000 * own.processor_seconds / size:.1f}" for size, own in stages.items())
        peaks = ", ".join(f"{own.peak_bytes / 1e6:.0f}" for own in stages.values())
        yield f"{name}: {times} ms of processor time per MB of text, {peaks} MB in a task, at {sizes} MB of text"


def _prepare(num_bytes: int) -> dict[str, Stage]:
    from cluster.runtime import ray_runtime
    from data_prep.config import PreparationConfig
    from data_prep.job import prepare

    # New worker processes for each, so that none begins with what another left in memory.
    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        folder = Path(scratch)
        _write_files(folder / "text", num_bytes)
        config = PreparationConfig.model_validate(
            {
                "name": "benchmark",
                "out": str(folder / "out"),
                "sources": [
                    {
                        "kind": "json_lines",
                        "name": "text",
                        "paths": [f"{folder}/text/*"],
                        "lang_field": "lang",
                    }
                ],
                "filters": _web_filters(),
                "dedup": {"documents": True, "near": {}, "paragraphs": {}},
                "decontaminate": {"tasks": ["drawn"]},
                "tokenizer": {"vocab_size": 16384, "train_bytes": 8_000_000},
                "shard_bytes": SHARD_BYTES,
            }
        )
        prepare(config, evaluation_texts=lambda _: _evaluation_texts())
        return dict(_stages(config.out))


def _web_filters() -> list[dict[str, Any]]:
    """The filters of `web.yaml` for these languages."""
    plain = yaml.safe_load(WEB.read_text("utf-8"))["filters"]
    return [own | SETTINGS.get(own["kind"], {}) for own in plain]


def _write_files(folder: Path, num_bytes: int) -> None:
    folder.mkdir()
    documents, number, left = mixture.shuffled_documents(num_bytes), 0, num_bytes
    while left > 0:
        path = folder / f"part-{number:05d}.jsonl"
        left -= mixture.write_json_lines(path, _up_to(documents, SHARD_BYTES * 9 // 10), prefix=f"{number}-")
        number += 1


def _up_to(documents: Iterator[tuple[str, str]], num_bytes: int) -> Iterator[tuple[str, str]]:
    for label, text in documents:
        yield label, text
        num_bytes -= len(text.encode())
        if num_bytes <= 0:
            return


def _evaluation_texts() -> Iterator[EvaluationText]:
    """Documents of other draws."""
    drawn = mixture.shuffled_documents(1 << 40, seed=2)
    for number, (_, text) in enumerate(islice(drawn, EVALUATION_TEXTS)):
        yield EvaluationText("drawn", f"test-{number}", text.splitlines()[0])


def _stages(out: Path) -> Iterator[tuple[str, Stage]]:
    directories = [path for path in sorted(out.iterdir()) if path.is_dir() and path.name != WORK]
    for directory in [*directories, *sorted((out / WORK).iterdir())]:
        log = directory / LOG_NAME
        if log.exists():
            lines: list[Mapping[str, float]] = [orjson.loads(own) for own in log.read_bytes().splitlines()]
            shards = [own for own in lines if "file" in own]
            total = sum(own["processor_seconds"] for own in shards)
            yield directory.name, Stage(total, max(int(own["peak_rss_bytes"]) for own in shards))
