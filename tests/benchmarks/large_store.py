"""A token store of very many documents, as every rank of a run takes it: opened, its first batch, and the next epoch.

Documents are short, of 8 to 31 tokens, because what counts is how many they are. Offsets and ids of documents are
real; tokens and positions of sentences are holes in sparse files, which read as zeros. Files are not hashed. Memory is
what the process itself takes, without pages of the mapped files, which the system may drop.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.layout import TOKEN_FILES
from data_prep.ragged import Ragged
from data_prep.token_writer import EncodedBatch
from tests.benchmarks.corpus import SPECIAL, tokenizer_of

NUM_DOCUMENTS = int(os.environ.get("CLOZE_BENCHMARK_DOCUMENTS", 20_000_000))
FORMATS = os.environ.get("CLOZE_BENCHMARK_FORMATS", "contiguous,best_fit").split(",")
LENGTH, BATCH, VOCAB_SIZE = 512, 256, 100
_PER_BATCH, _PER_FILE = 1 << 20, 1 << 24
_SAMPLED_S = 0.02
_ID_LETTERS = 8


def run() -> Iterator[str]:
    """One line for each format."""
    with tempfile.TemporaryDirectory() as scratch:
        store, small = Path(scratch) / "tokens", Path(scratch) / "small"
        _write_sparse_store(store, NUM_DOCUMENTS)
        _write_sparse_store(small, 10_000)
        for format in FORMATS:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                # Compiled loops are made, or read from their cache, before anything is measured.
                process.submit(_measure, small, format).result()
                yield process.submit(_measure, store, format).result()


def _measure(path: Path, format: str) -> str:
    """Seconds of each step, and the peak of the process's own memory until its end."""
    from data_prep.token_store import TokenStore
    from pipeline.samples.dataset import TokenDataset
    from pipeline.samples.mixture import Sampling, StoreShare

    before, highest, found, ended = _anonymous_bytes(), 0, [], threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.wait(_SAMPLED_S):
            highest = max(highest, _anonymous_bytes() - before)

    def step(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        found.append((name, time.perf_counter() - started, highest))
        return result

    threading.Thread(target=watch, daemon=True).start()
    store = step("opened", lambda: TokenStore.open(path, verify=False))
    sampling = Sampling(sequence_length=LENGTH, seed=1, held_out=0.005, format=format)  # pyright: ignore[reportArgumentType]
    samples = step("held out, counted", lambda: TokenDataset([StoreShare(store)], sampling))
    batch = np.arange(BATCH)
    step("first batch", lambda: samples.batch(batch))
    step("first of the next epoch", lambda: samples.batch(samples.samples_per_epoch[0] + batch))
    ended.set()
    told = ", ".join(
        f"{name} {seconds:.1f} s ({peak / store.num_documents:.0f} bytes a document)"
        for name, seconds, peak in found
    )
    return f"store of {store.num_documents:,} documents, {format}: {told}"


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))


def _write_sparse_store(path: Path, num_documents: int) -> None:
    from cluster.artefacts.manifest import FileEntry
    from cluster.artefacts.storage import commit, staging_directory
    from data_prep.token_writer import token_dtype, write_sidecars, write_token_shard

    files, dtype = TOKEN_FILES.files(-(-num_documents // _PER_FILE)), token_dtype(VOCAB_SIZE)
    staging = staging_directory(path, "benchmark")
    staging.mkdir(parents=True)
    for number, name in enumerate(files):
        first, end = number * _PER_FILE, min((number + 1) * _PER_FILE, num_documents)
        batches = (_batch(begin, min(begin + _PER_BATCH, end)) for begin in range(first, end, _PER_BATCH))
        write_token_shard(staging / name, "benchmark", ["en"], batches, dtype)
        subprocess.run(["fallocate", "--dig-holes", staging / name], check=True)
    write_sidecars(staging, files, dtype, tokenizer_of(VOCAB_SIZE).encode())
    # Files are only compared in size, so that a hundred gigabytes of holes need not be hashed.
    entries = [
        FileEntry(file.name, file.stat().st_size, "0" * 32, None, None) for file in sorted(staging.iterdir())
    ]
    config = {"vocab_size": VOCAB_SIZE, "special_tokens": SPECIAL}
    commit(staging, path, "tokens", config=config, files=entries)


def _batch(first: int, end: int) -> EncodedBatch:
    """The documents with these numbers: their ids are real, their tokens and sentences zeros."""
    numbers, count = np.arange(first, end), end - first
    letters = (numbers[:, None] >> np.arange(0, 4 * _ID_LETTERS, 4) & 15).astype(np.uint8) + ord("a")
    places = np.arange(count + 1, dtype=np.int32) * np.int32(_ID_LETTERS)
    offsets = np.cumsum([0, *np.random.Generator(np.random.Philox(first)).integers(8, 32, size=count)])
    none = np.zeros(count, dtype=np.int32)
    return EncodedBatch(
        doc_ids=pa.StringArray.from_buffers(count, pa.py_buffer(places), pa.py_buffer(letters)),
        langs=pa.array(["en"]).take(pa.array(none)),
        input_ids=Ragged(np.zeros(offsets[-1], dtype=np.uint16), offsets),
        sentence_starts=Ragged(none, np.arange(count + 1)),
    )
