"""Near-duplicates: pairs found and signatures against datasketch, a corpus against datatrove, memory as it grows.

Documents are made of shuffled sentences of the Wikipedia articles below CLOZE_DATA; every tenth is a copy of an earlier
one in which some sentences were replaced.
"""

# datatrove is no part of the environment that the checker sees.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from tests.benchmarks.compare import Comparison, compare, peer_name

NUM_PROCESSES = 2
NGRAM = 5
SIGNED = 2_000
"""Documents of the comparison of signatures."""
WHOLE = 50_000
"""Documents of the comparison of the whole."""
SMALL, LARGE = 12_500, 50_000
"""Documents of the comparison of memory."""
SHARD_DOCUMENTS = 2_500
CHARACTERS = 2_300
"""Mean length of a document."""
PAIRS = 5_000
"""Pairs of each similarity."""
BANDS, ROWS = 14, 8
"""datatrove's default."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most memory that a task of a step held, in corpora of two sizes."""

    step: str
    small_bytes: int
    large_bytes: int

    def __str__(self) -> str:
        return (
            f"peak memory of a task, {self.step}: {self.small_bytes / 1e6:,.0f} MB at {SMALL:,} documents,"
            f" {self.large_bytes / 1e6:,.0f} MB at {LARGE:,}"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Share of the pairs of a known similarity that meet in a bucket."""

    similarity: float
    ours: float
    theirs: float

    def __str__(self) -> str:
        return (
            f"pairs of Jaccard similarity {self.similarity:.2f} found at threshold 0.8: {self.ours:.1%};"
            f" datasketch at its defaults for it {self.theirs:.1%} ({PAIRS:,} pairs)"
        )


def run() -> Iterator[Comparison | Peaks | Found]:
    """Pairs found; documents per second, with shingling; then memory."""
    yield from _recall()
    sentences = _sentences()
    yield _signatures(_documents(sentences, SIGNED))
    yield _whole(_documents(sentences, WHOLE))
    yield from _memory(_documents(sentences, LARGE))


def _recall() -> Iterator[Found]:
    """Sets of 340 random hashes that share as many as makes the similarity."""
    from datasketch import MinHash, MinHashLSH

    from data_prep.dedup.config import NearDedup
    from data_prep.dedup.near import band_keys, sign
    from data_prep.ragged import Ragged

    method, size = NearDedup(), 340
    bands, rows = method.shape
    generator = np.random.Generator(np.random.Philox(13))
    for similarity in (0.7, 0.8, 0.85, 0.9):
        shared = round(2 * size * similarity / (1 + similarity))
        values = generator.integers(0, 1 << 64, (PAIRS, 2 * size - shared), np.uint64)
        sides = [np.ascontiguousarray(values[:, :size]), np.ascontiguousarray(values[:, -size:])]
        offsets = size * np.arange(PAIRS + 1)
        first, second = (
            band_keys(sign(Ragged(own.reshape(-1), offsets), bands * rows, 1), bands, rows) for own in sides
        )
        lsh, met = MinHashLSH(threshold=method.threshold, num_perm=128), 0
        for number in range(PAIRS):
            made = []
            for own in sides:
                made.append(MinHash(num_perm=128))
                made[-1].update_batch([value.tobytes() for value in own[number]])
            lsh.insert(number, made[0])
            met += number in lsh.query(made[1])
        yield Found(shared / (2 * size - shared), float((first == second).any(axis=1).mean()), met / PAIRS)


def _signatures(texts: list[str]) -> Comparison:
    from datasketch import MinHash

    from data_prep.dedup.near import sign
    from data_prep.dedup.texts import shingle, text_blocks

    os.environ["RAYON_NUM_THREADS"] = "1"
    column = pa.array(texts)

    def ours() -> None:
        for _, block in text_blocks(column):
            sign(shingle(block, NGRAM), 128, 1)

    def theirs() -> None:
        for text in texts:
            words = text.lower().split()
            grams = {" ".join(words[i : i + NGRAM]).encode() for i in range(len(words) - NGRAM + 1)}
            MinHash(num_perm=128).update_batch(grams)

    what = f"MinHash signatures, 128 permutations of word {NGRAM}-grams, from text, one core"
    return compare(what, peer_name("datasketch"), "documents", len(texts), ours, theirs, rounds=5)


def _whole(texts: list[str]) -> Comparison:
    """Both read the same Parquet files; ours ends in verified selections, theirs in lists of what to remove."""
    from cluster.runtime import ray_runtime

    peer = peer_name("datatrove", f"MinHash with plain splitting into words, {NUM_PROCESSES} processes")
    near = {"bands": BANDS, "rows": ROWS, "num_permutations": BANDS * ROWS}
    removed = [0, 0]
    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        shards = [texts[i : i + SHARD_DOCUMENTS] for i in range(0, len(texts), SHARD_DOCUMENTS)]
        out = Path(scratch) / "ours"
        documents, deduplicate = _prepare(out, shards, {"documents": False, "near": near})

        def ours() -> None:
            _delete(out / "dedup", out / "work")
            removed[0] = deduplicate().stats["near_duplicates"]

        def theirs() -> None:
            _delete(Path(scratch) / "theirs")
            removed[1] = _run_datatrove(documents, len(shards), Path(scratch) / "theirs")

        result = compare("", peer, "documents", len(texts), ours, theirs, rounds=1, warm_up=False)
    what = f"near-deduplication of {len(texts):,} documents ({removed[0]:,} and {removed[1]:,} removed)"
    return replace(result, what=what)


def _memory(texts: list[str]) -> list[Peaks]:
    """With partitions of few records, so that the larger corpus has more of them."""
    from cluster.runtime import ray_runtime
    from data_prep.dedup import records

    peaks: list[dict[str, int]] = []
    for count in (SMALL, LARGE):
        shards = [texts[i : i + SHARD_DOCUMENTS] for i in range(0, count, SHARD_DOCUMENTS)]
        with (
            tempfile.TemporaryDirectory() as scratch,
            ray_runtime("local", num_cpus=NUM_PROCESSES),
            patch.object(records, "PARTITION_RECORDS", 1 << 15),
        ):
            _, deduplicate = _prepare(Path(scratch) / "out", shards, "full")
            deduplicate()
            peaks.append(_peaks(Path(scratch) / "out"))
    return [Peaks(step, peaks[0][step], peaks[1][step]) for step in peaks[0] if step in peaks[1]]


def _peaks(out: Path) -> dict[str, int]:
    """By step, the largest peak among its tasks."""
    found: dict[str, int] = defaultdict(int)
    for log in sorted(out.glob("work/*/shard-log.jsonl")) + sorted(out.glob("dedup/shard-log.jsonl")):
        for line in log.read_bytes().splitlines():
            if peak := orjson.loads(line).get("peak_rss_bytes"):
                found[log.parent.name] = max(found[log.parent.name], peak)
    return found


def _prepare(out: Path, shards: list[list[str]], dedup: Any) -> tuple[Path, Any]:
    """(the folder of committed documents, a function that deduplicates them)."""
    from data_prep.stages.deduplicate import deduplicate
    from tests.data_prep.dedup.corpus import workspace, write_documents

    documents = write_documents(out, shards)
    job = workspace(out, len(shards), dedup)
    return out / "documents", lambda: deduplicate(job, documents)


def _run_datatrove(documents: Path, num_shards: int, out: Path) -> int:
    """Signatures, buckets and clusters; returns how many documents are to be removed."""
    try:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.dedup import minhash
        from datatrove.pipeline.dedup.minhash import (
            MinhashConfig,
            MinhashDedupBuckets,
            MinhashDedupCluster,
            MinhashDedupSignature,
        )
        from datatrove.pipeline.readers import ParquetReader
        from datatrove.utils.word_tokenizers import WordTokenizer
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -r requirements-bench.txt") from None

    class PlainWords(WordTokenizer):
        """Splits at spaces: an order of magnitude faster than datatrove's own for English."""

        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        sent_tokenize = span_tokenize = word_tokenize

    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    folders = [str(out / name) for name in ("signatures", "buckets", "remove")]
    reader = ParquetReader(str(documents), text_key="text", id_key="doc_id", glob_pattern="*.parquet")
    words: Any = PlainWords()
    # Its default hash hands strings to xxhash, which from version 4 on wants bytes.
    minhash.create_hash_func = lambda config: lambda gram: xxhash.xxh64_intdigest(gram.encode())
    sign = MinhashDedupSignature(folders[0], config, language=words)
    steps = [
        ([reader, sign], num_shards),
        ([MinhashDedupBuckets(folders[0], folders[1], config=config)], BANDS),
        ([MinhashDedupCluster(folders[1], folders[2], config=config)], 1),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline=pipeline, tasks=tasks, workers=NUM_PROCESSES, logging_dir=str(out / f"logs{number}")
        ).run()
    return sum(path.stat().st_size // 4 for path in Path(folders[2]).glob("*.remove"))


def _sentences() -> list[str]:
    """Sentences of real articles, always the same."""
    folder = Path(os.environ.get("CLOZE_DATA", "")) / "wikipedia" / "extracted-en"
    files = sorted(path for path in folder.rglob("*") if path.is_file())[:30]
    if not files:
        raise SystemExit("set CLOZE_DATA to the folder of real corpora")
    lines = [line for path in files for line in path.read_text("utf-8").splitlines() if len(line) > 200]
    return [part + "." for line in lines for part in line.split(". ") if len(part) > 40]


def _documents(sentences: list[str], count: int) -> list[str]:
    generator = np.random.Generator(np.random.Philox(7))
    per_document = round(CHARACTERS / np.mean([len(sentence) for sentence in sentences]))
    chosen = generator.integers(0, len(sentences), size=(count, per_document))
    for row in range(10, count, 10):
        chosen[row] = chosen[generator.integers(0, row)]
        places = generator.choice(per_document, int(generator.integers(0, 4)), replace=False)
        chosen[row, places] = generator.integers(0, len(sentences), size=len(places))
    return ["\n".join(sentences[number] for number in row) for row in chosen.tolist()]


def _delete(*directories: Path) -> None:
    import shutil

    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
