"""Filters and the documents stage on a mixture of languages, in processor time of one core.

The filters are those of `configs/filters/web.yaml`, with settings for the mixture's languages, so that documents reach
the last filter. See `mixture.py` for the texts.
"""

# datatrove is no part of the environment that the checker sees.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from pydantic import TypeAdapter

from data_prep.document import Document
from data_prep.filters import AnyFilter, FilterChain
from data_prep.sources import FilePart
from data_prep.sources.base import SourceFile
from data_prep.sources.records import JsonLinesConfig
from data_prep.stages.collect import collect_documents
from tests.benchmarks import mixture
from tests.benchmarks.compare import Comparison, compare, peer_name

NUM_BYTES = int(os.environ.get("CLOZE_BENCHMARK_BYTES", 32_000_000))
ROUNDS = 3
WEB = Path(__file__).parents[2] / "configs" / "filters" / "web.yaml"
LANGUAGES = ["en", "fr", "ko", "ro", "zh"]
SETTINGS: dict[str, dict[str, Any]] = {
    "language": {"allowed": LANGUAGES},
    "gopher_quality": {"min_mean_word_length": 0.5, "min_stop_words": 0},
}
PEERS = {
    "gopher_repetition": "GopherRepetitionFilter",
    "gopher_quality": "GopherQualityFilter",
    "c4": "C4QualityFilter",
    "fineweb": "FineWebQualityFilter",
}
"""Filters of datatrove with the rules of ours."""
COMMON_CRAWL = ("language", "gopher_repetition", "gopher_quality")
"""The filters of `configs/data/common-crawl.yaml`."""


def run() -> Iterator[Comparison | str]:
    """MB/s of each filter, of both chains and of the documents stage; then English beside datatrove's filters."""
    found = list(mixture.documents(NUM_BYTES)) if mixture.texts() else []
    if not found:
        print("filters is left out: CLOZE_DATA names no folder with texts", file=sys.stderr)
        return
    what = f"{sum(len(text.encode()) for _, text in found) / 1e6:.0f} MB in {', '.join(mixture.texts())}"
    documents = [Document("x", "x", "x", "", label, text) for label, text in found]
    web = web_filters()
    chains: dict[str, tuple[AnyFilter, ...]] = {f"{config.kind} alone": (config,) for config in web}
    chains["the filters of common-crawl.yaml"] = tuple(own for own in web if own.kind in COMMON_CRAWL)
    chains["the filters of web.yaml"] = web
    for name, configs in chains.items():
        yield f"{name}, {what}: {_best(lambda own=configs: _filter(documents, own), documents)}"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "text.jsonl"
        mixture.write_json_lines(path, found)
        for name, configs in {"without filters": (), **dict(list(chains.items())[-2:])}.items():
            seconds = _best(lambda own=configs: collect(path, own), documents)
            yield f"documents stage, {name}, from JSON lines, {what}: {seconds}"
    yield from _beside_datatrove([own.text for own in documents if own.lang == "en"])


def web_filters() -> tuple[AnyFilter, ...]:
    """The filters of `web.yaml` for these languages."""
    plain = yaml.safe_load(WEB.read_text("utf-8"))["filters"]
    return tuple(TypeAdapter(AnyFilter).validate_python(own | SETTINGS.get(own["kind"], {})) for own in plain)


def collect(path: Path, filters: tuple[AnyFilter, ...]) -> None:
    """The body of the task of the documents stage: JSON lines to one Parquet file."""
    source = JsonLinesConfig(name="mixture", paths=(str(path),), id_field="id", lang_field="lang")
    part = FilePart(SourceFile(str(path), path.name))
    collect_documents(source, (part,), filters, 1, path.with_suffix(".parquet"))


def _filter(documents: list[Document], configs: tuple[AnyFilter, ...]) -> None:
    chain = FilterChain(configs)
    for document in documents:
        chain.apply(document)


def _best(work: Callable[[], object], documents: list[Document]) -> str:
    """The least processor time of some rounds, which other programs disturb least, as a speed."""
    work()
    size = sum(len(document.text.encode()) for document in documents)
    return f"{size / 1e6 / min(_processor_seconds(work) for _ in range(ROUNDS)):.1f} MB/s"


def _processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _beside_datatrove(texts: list[str]) -> Iterator[Comparison]:
    """Rules that both have, text in memory. Its words are cut at white space here: its own way needs a package for each
    language, and is slower."""
    try:
        from datatrove.data import Document as Theirs
        from datatrove.pipeline import filters as peers
        from datatrove.utils import word_tokenizers as peer_words
    except ImportError:
        print("datatrove is left out: pip install -r requirements-bench.txt", file=sys.stderr)
        return
    ours = [Document("x", "x", "x", "", "en", text) for text in texts]
    size = sum(len(text.encode()) for text in texts) / 1e6
    for kind, name in PEERS.items():
        peer = getattr(peers, name)()
        apply = next(own for own in web_filters() if own.kind == kind).build()
        yield compare(
            f"{kind} of {len(texts)} English documents (processor time)",
            peer_name("datatrove", f"{name} with plain splitting into words"),
            "MB",
            size,
            lambda apply=apply: _processor_seconds(lambda: [apply(one) for one in ours]),
            lambda peer=peer: _patched_seconds(
                peer, [Theirs(text=text, id="x") for text in texts], peer_words
            ),
            ROUNDS,
        )


def _patched_seconds(peer: Any, documents: list[Any], module: Any) -> float:
    with patch.object(module, "load_word_tokenizer", lambda language: _PlainSplitter()):
        return _processor_seconds(lambda: [peer.filter(one) for one in documents])


class _PlainSplitter:
    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        ends = [*accumulate(len(sentence) + 2 for sentence in text.split(". "))]
        return list(zip([0, *ends], ends, strict=False))
