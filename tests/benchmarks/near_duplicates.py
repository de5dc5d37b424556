"""Near-duplicates: signatures against datasketch, a corpus against datatrove.

Documents are made of shuffled sentences of real text; every tenth is a copy of an earlier one in which some sentences
were replaced.
"""

# datatrove is no part of the environment that the checker sees.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tests.benchmarks.corpus import documents
from tests.benchmarks.harness import Comparison, compare, peer_name

NUM_PROCESSES = 2
NGRAM = 5
SIGNED = 2_000
"""Documents of the comparison of signatures."""
WHOLE = 50_000
"""Documents of the comparison of the whole, where a smaller corpus would be mostly start-up."""
SHARD_DOCUMENTS = 2_500
CHARACTERS = 2_300
"""Mean length of a document."""
BANDS, ROWS = 14, 8
"""datatrove's default."""


def run() -> Iterator[Comparison]:
    """Documents per second, with shingling."""
    sentences = _sentences()
    yield _signatures(_documents(sentences, SIGNED))
    yield _whole(_documents(sentences, WHOLE))


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
    from data_prep.stages.deduplicate import deduplicate
    from tests.data_prep.dedup.corpus import workspace, write_documents

    peer = peer_name("datatrove", f"MinHash with plain splitting into words, {NUM_PROCESSES} processes")
    near = {"bands": BANDS, "rows": ROWS, "num_permutations": BANDS * ROWS}
    removed = [0, 0]
    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        shards = [texts[i : i + SHARD_DOCUMENTS] for i in range(0, len(texts), SHARD_DOCUMENTS)]
        out = Path(scratch) / "ours"
        write_documents(out, shards)
        job = workspace(out, len(shards), {"documents": False, "near": near})

        def ours() -> None:
            removed[0] = deduplicate(job).stats["near_duplicates"]

        def theirs() -> None:
            removed[1] = _run_datatrove(out / "documents", len(shards), Path(scratch) / "theirs")

        result = compare("", peer, "documents", len(texts), ours, theirs, rounds=1, warm_up=False)
    what = f"near-deduplication of {len(texts):,} documents ({removed[0]:,} and {removed[1]:,} removed)"
    return replace(result, what=what)


def _run_datatrove(documents: Path, num_shards: int, out: Path) -> int:
    """Signatures, buckets and clusters; returns how many documents are to be removed."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.utils.word_tokenizers import WordTokenizer

    class PlainWords(WordTokenizer):
        """Splits at spaces: an order of magnitude faster than datatrove's own for English."""

        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        sent_tokenize = span_tokenize = word_tokenize

    config = minhash.MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    folders = [str(out / name) for name in ("signatures", "buckets", "remove")]
    reader = ParquetReader(str(documents), text_key="text", id_key="doc_id", glob_pattern="*.parquet")
    words: Any = PlainWords()
    # Its default hash hands strings to xxhash, which from version 4 on wants bytes.
    minhash.create_hash_func = lambda config: lambda gram: xxhash.xxh64_intdigest(gram.encode())
    sign = minhash.MinhashDedupSignature(folders[0], config, language=words)
    steps = [
        ([reader, sign], num_shards),
        ([minhash.MinhashDedupBuckets(folders[0], folders[1], config=config)], BANDS),
        ([minhash.MinhashDedupCluster(folders[1], folders[2], config=config)], 1),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline=pipeline, tasks=tasks, workers=NUM_PROCESSES, logging_dir=str(out / f"logs{number}")
        ).run()
    return sum(path.stat().st_size // 4 for path in Path(folders[2]).glob("*.remove"))


def _sentences() -> list[str]:
    """Sentences of real text, always the same."""
    lines = (line for text in islice(documents(), 5000) for line in text.splitlines())
    return [f"{part}." for line in lines for part in line.split(". ") if len(part) > 40]


def _documents(sentences: list[str], count: int) -> list[str]:
    generator = np.random.Generator(np.random.Philox(7))
    per_document = round(CHARACTERS / np.mean([len(sentence) for sentence in sentences]))
    chosen = generator.integers(0, len(sentences), size=(count, per_document))
    for row in range(10, count, 10):
        chosen[row] = chosen[generator.integers(0, row)]
        places = generator.choice(per_document, int(generator.integers(0, 4)), replace=False)
        chosen[row, places] = generator.integers(0, len(sentences), size=len(places))
    return ["\n".join(sentences[number] for number in row) for row in chosen.tolist()]
