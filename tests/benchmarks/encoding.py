"""Text to committed Arrow shards through Ray, against what a user would take instead, on the same JSON lines.

The peers: `datasets.map` with the same tokenizer.json, datatrove's tokenizer step, and the fastest exact encoder
called alone on texts that are in memory already. Two processes (or threads) each; ids are compared first. Peers run in
processes of their own, because libraries that fork do not like to be forked twice.
"""

# datatrove is no part of the environment that the checker sees.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from tests.benchmarks.corpus import documents
from tests.benchmarks.harness import Comparison, compare, compare_all, in_process, peer_name

NUM_PROCESSES = 2
NUM_BYTES = int(os.environ.get("CLOZE_BENCHMARK_BYTES", 256_000_000))
SHARD_BYTES = 16 << 20


def run() -> Iterator[Comparison]:
    """MB of text per second: reading, filtering by length, writing documents, encoding, committing."""
    from cluster.runtime import ray_runtime
    from data_prep.job import prepare_tokenizer

    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        folder = Path(scratch)
        megabytes = _write_json_lines(folder / "text") / 1e6
        # GPT-2's, where CLOZE_DATA has it; else one trained on the text itself.
        root = os.environ.get("CLOZE_DATA")
        wanted = {"path": f"{root}/tokenizers/gpt2"} if root else {"vocab_size": 50_000}
        prepare_tokenizer(_config(folder, "tokenizer", wanted))
        _prepare(folder, "none", "ours-none")
        what = f"{megabytes:.0f} MB of JSON lines to committed shards"
        ours = {
            f"{what}, sentences: {sentences}": partial(_prepare, folder, sentences, f"ours-{sentences}")
            for sentences in ("none", "blingfire")
        }
        peer = partial(in_process, __name__)
        theirs = {
            peer_name("datasets", "map, 2 processes, without sentences"): peer("with_datasets", scratch),
            peer_name("datatrove", "DocumentTokenizer, 2 tasks, without sentences"): peer(
                "with_datatrove", scratch
            ),
        }
        found = compare_all(ours, theirs, "MB", megabytes, rounds=2)
        _require_equal_ids(folder)
        yield from found
        yield compare(
            f"token stage alone ({megabytes:.0f} MB of documents to committed shards), sentences: none",
            peer_name("fastokens", f"alone, {NUM_PROCESSES} threads, text in memory"),
            "MB",
            megabytes,
            # Everything before the tokens is there and is confirmed.
            lambda: _prepare(folder, "none", "ours-none/tokens"),
            # The number of its threads is fixed when its process starts.
            peer("encode_alone", scratch, RAYON_NUM_THREADS=str(NUM_PROCESSES)),
            rounds=3,
        )


def _write_json_lines(directory: Path) -> int:
    """At least NUM_BYTES of text as JSON lines (`text`, `id`) in some files; returns the bytes of text.

    The documents are repeated, each time with a mark in front, until there is enough.
    """
    directory.mkdir()
    texts, written, number = list(documents()), 0, 0
    with ExitStack() as stack:
        files = [stack.enter_context((directory / f"part-{file}.jsonl").open("wb")) for file in range(8)]
        while written < NUM_BYTES:
            copy, place = divmod(number, len(texts))
            text = f"Copy {copy}.\n{texts[place]}" if copy else texts[place]
            files[number % 8].write(orjson.dumps({"id": f"d{number}", "text": text}) + b"\n")
            written += len(text.encode("utf-8"))
            number += 1
    return written


def _config(folder: Path, name: str, tokenizer: dict, sentences: str = "none"):
    from data_prep.config import PreparationConfig

    source = {"kind": "json_lines", "name": "text", "paths": [f"{folder}/text/*"], "id_field": "id"}
    settings = {"sources": [source], "tokenizer": tokenizer, "sentences": sentences, "dedup": "none"}
    return PreparationConfig.model_validate(
        {"name": "benchmark", "out": str(folder / name), "shard_bytes": SHARD_BYTES, **settings}
    )


def _prepare(folder: Path, sentences: str, anew: str) -> None:
    """Make what is missing once this directory is deleted."""
    from data_prep.job import prepare

    shutil.rmtree(folder / anew, ignore_errors=True)
    prepare(_config(folder, f"ours-{sentences}", {"path": str(_tokenizer(folder))}, sentences))


def _tokenizer(folder: Path) -> Path:
    return folder / "tokenizer" / "tokenizer" / "tokenizer.json"


def _require_equal_ids(folder: Path) -> None:
    """Every document's ids are those of `datasets.map`, in what both wrote last."""
    import datasets

    ours, theirs = (
        datasets.load_from_disk(str(folder / name / "tokens")).with_format("numpy")
        for name in ("ours-none", "datasets")
    )
    by_id = {row["id"]: number for number, row in enumerate(theirs.select_columns(["id"]))}
    for row in ours:
        expected = theirs[by_id[row["doc_id"].removeprefix("text:")]]["input_ids"]
        assert np.array_equal(row["input_ids"], expected), row["doc_id"]


def with_datasets(scratch: str) -> None:
    """`datasets.map` to a directory of Arrow files."""
    from datasets import disable_caching, disable_progress_bars, load_dataset
    from transformers import PreTrainedTokenizerFast

    out = Path(scratch) / "datasets"
    shutil.rmtree(out, ignore_errors=True)
    disable_caching()
    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(_tokenizer(Path(scratch))))
    documents = load_dataset(
        "json",
        data_files=f"{scratch}/text/*",
        split="train",
        cache_dir=str(out / "cache"),
        num_proc=NUM_PROCESSES,
    )
    documents.map(
        lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        num_proc=NUM_PROCESSES,
        remove_columns=["text"],
    ).save_to_disk(str(out / "tokens"))


def with_datatrove(scratch: str) -> None:
    """datatrove's tokenizer step to its own binary format."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    out, tokenizer = Path(scratch) / "datatrove", str(_tokenizer(Path(scratch)))
    shutil.rmtree(out, ignore_errors=True)
    LocalPipelineExecutor(
        [
            JsonlReader(f"{scratch}/text"),
            DocumentTokenizer(str(out / "tokens"), tokenizer, shuffle_documents=False),
        ],
        tasks=NUM_PROCESSES,
        workers=NUM_PROCESSES,
        logging_dir=str(out / "logs"),
        start_method="fork",
    ).run()


def encode_alone(scratch: str) -> float:
    """Seconds of encoding texts that are in memory."""
    import fastokens

    files = sorted((Path(scratch) / "text").iterdir())
    texts = [orjson.loads(line)["text"] for path in files for line in path.open("rb")]
    parts = orjson.loads(_tokenizer(Path(scratch)).read_bytes()) | {"post_processor": None}
    encoder = fastokens.Tokenizer.from_json_str(orjson.dumps(parts).decode())
    started = time.perf_counter()
    for first in range(0, len(texts), 1000):
        encoder.encode_batch_flat(texts[first : first + 1000], False, True)
    return time.perf_counter() - started
