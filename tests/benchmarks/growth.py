"""Processor time and memory of every stage of a preparation as the corpus grows, on documents in several languages.

Everything is switched on: the filters of `web.yaml`, near-duplicates, repeated paragraphs and decontamination.

Documents are sentences in ever new orders, so that a larger corpus is not one with more copies, and equally many bytes
of each language: English and Korean Wikipedia and French and Romanian novels below CLOZE_DATA, and the text files
(UTF-8, a paragraph a line) in the folder that CLOZE_CHINESE names.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import yaml

from cluster.artefacts.shard_records import LOG_NAME
from data_prep.decontaminate.config import EvaluationText
from data_prep.layout import WORK
from data_prep.text import clean_text
from tests.benchmarks.corpus import read_texts

SIZES = tuple(int(own) for own in os.environ.get("CLOZE_BENCHMARK_SIZES", "64 256").split())
"""MB of text."""
SHARD_BYTES = 16_000_000
EVALUATION_TEXTS = 2000
SENTENCES_OF_A_LINE, LINES_OF_A_DOCUMENT = 4, 8
WEB = Path(__file__).parents[2] / "configs" / "filters" / "web.yaml"
SETTINGS: dict[str, dict[str, Any]] = {
    "language": {"allowed": ["en", "fr", "ko", "ro", "zh"]},
    "gopher_quality": {"min_mean_word_length": 0.5, "min_stop_words": 0},
}
"""For these languages, so that documents reach the last filter."""
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")
_Stages = dict[str, tuple[float, int]]
"""By stage, or step of one, seconds of processor time, and bytes of the task that takes most memory."""


def run() -> Iterator[str]:
    """A line per stage and step."""
    root = os.environ.get("CLOZE_DATA")
    if not root:
        print("growth is left out: CLOZE_DATA names no folder with texts", file=sys.stderr)
        return
    sentences = _sentences(root)
    found = {size: _prepare(sentences, size * 1_000_000) for size in SIZES}
    sizes = ", ".join(map(str, SIZES))
    for name in found[SIZES[0]]:
        stages = {size: found[size][name] for size in SIZES if name in found[size]}
        times = ", ".join(f"{1000 * seconds / size:.1f}" for size, (seconds, _) in stages.items())
        peaks = ", ".join(f"{peak / 1e6:.0f}" for _, peak in stages.values())
        yield f"{name}: {times} ms of processor time per MB of text, {peaks} MB in a task, at {sizes} MB of text"


def _prepare(sentences: dict[str, list[str]], num_bytes: int) -> _Stages:
    from cluster.runtime import ray_runtime
    from data_prep.config import PreparationConfig
    from data_prep.job import prepare

    filters = yaml.safe_load(WEB.read_text("utf-8"))["filters"]
    drawn = islice(_documents(sentences, seed=2), EVALUATION_TEXTS)
    evaluation_texts = [
        EvaluationText("drawn", f"test-{number}", text.splitlines()[0])
        for number, (_, text) in enumerate(drawn)
    ]
    # New worker processes for each, so that none begins with what another left in memory.
    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=1):
        folder = Path(scratch)
        _write_files(folder / "text", sentences, num_bytes)
        source = {"kind": "json_lines", "name": "text", "paths": [f"{folder}/text/*"], "lang_field": "lang"}
        config = PreparationConfig.model_validate(
            {
                "name": "benchmark",
                "out": str(folder / "out"),
                "sources": [source],
                "filters": [own | SETTINGS.get(own["kind"], {}) for own in filters],
                "dedup": {"documents": True, "near": {}, "paragraphs": {}},
                "decontaminate": {"tasks": ["drawn"]},
                "tokenizer": {"vocab_size": 16384, "train_bytes": 8_000_000},
                "shard_bytes": SHARD_BYTES,
            }
        )
        prepare(config, evaluation_texts=lambda _: evaluation_texts)
        return _stages(config.out)


def _stages(out: Path) -> _Stages:
    found: _Stages = {}
    for log in [*sorted(out.glob(f"*/{LOG_NAME}")), *sorted(out.glob(f"{WORK}/*/{LOG_NAME}"))]:
        shards = [line for line in map(orjson.loads, log.read_bytes().splitlines()) if "file" in line]
        total = sum(own["processor_seconds"] for own in shards)
        found[log.parent.name] = total, max(int(own["peak_rss_bytes"]) for own in shards)
    return found


def _write_files(folder: Path, sentences: dict[str, list[str]], num_bytes: int) -> None:
    """JSON lines (`id`, `lang`, `text`), in files of less than a shard."""
    folder.mkdir()
    documents, part = enumerate(_documents(sentences, seed=1)), SHARD_BYTES * 9 // 10
    for first in range(0, num_bytes, part):
        left = min(part, num_bytes - first)
        with (folder / f"part-{first:012d}.jsonl").open("wb") as stream:
            while left > 0:
                number, (label, text) = next(documents)
                stream.write(orjson.dumps({"id": f"{number}", "lang": label, "text": text}) + b"\n")
                left -= len(text.encode())


def _documents(sentences: dict[str, list[str]], seed: int) -> Iterator[tuple[str, str]]:
    """(language, text) without end."""
    draw, written = random.Random(seed), dict.fromkeys(sentences, 0)
    while True:
        label = min(written, key=lambda own: (written[own], own))
        glue = "" if label == "zh" else " "
        text = "\n".join(
            glue.join(draw.choices(sentences[label], k=SENTENCES_OF_A_LINE))
            for _ in range(LINES_OF_A_DOCUMENT)
        )
        written[label] += len(text.encode())
        yield label, text


def _sentences(root: str) -> dict[str, list[str]]:
    """By language."""
    from data_prep.sources.books_tei import BooksTeiConfig
    from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig

    found = {
        label: list(
            read_texts(WikipediaExtractedConfig(name=label, paths=(f"{root}/wikipedia/extracted-{label}/*",)))
        )
        for label in ("en", "ko")
    }
    # French and Romanian count as one language, because neither has much.
    books = (f"{root}/books/fr/*.xml", f"{root}/books/ro/*.xml")
    found["ro"] = list(read_texts(BooksTeiConfig(name="ro", lang="ro", paths=books)))
    if folder := os.environ.get("CLOZE_CHINESE"):
        found["zh"] = [clean_text(path.read_text("utf-8")) for path in sorted(Path(folder).rglob("*.txt"))]
    return {
        label: [sentence for text in texts for sentence in _SENTENCE_ENDS.split(text) if len(sentence) > 5]
        for label, texts in found.items()
    }
