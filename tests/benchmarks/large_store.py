"""A token store of very many documents, as every rank of a run takes it: opened, its first batch, and the next epoch.

Documents are short, of 8 to 31 tokens, because what counts is how many they are. Offsets and ids of documents are
real; tokens and positions of sentences are holes in sparse files, which read as zeros. Files are not hashed. Memory is
what the process itself takes, without pages of the mapped files, which the system may drop.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.layout import TOKEN_FILES

NUM_DOCUMENTS = int(os.environ.get("CLOZE_BENCHMARK_DOCUMENTS", 20_000_000))
FORMATS = os.environ.get("CLOZE_BENCHMARK_FORMATS", "contiguous,best_fit").split(",")
LENGTH, BATCH = 512, 256
_PER_BATCH, _PER_FILE = 1 << 20, 1 << 24
_SAMPLED_S = 0.02
_ID_LETTERS = 8
_NO_HASH = "0" * 32


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

    found = []

    def step(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        found.append((name, time.perf_counter() - started, peak()))
        return result

    def dataset() -> TokenDataset:
        sampling = Sampling(sequence_length=LENGTH, seed=1, held_out=0.005, format=format)  # pyright: ignore[reportArgumentType]
        return TokenDataset([StoreShare(store)], sampling)

    with _own_memory() as peak:
        store = step("opened", lambda: TokenStore.open(path, verify=False))
        samples = step("held out, counted", dataset)
        batch = np.arange(BATCH)
        step("first batch", lambda: samples.batch(batch))
        step("first of the next epoch", lambda: samples.batch(samples.samples_per_epoch[0] + batch))
    told = ", ".join(
        f"{name} {seconds:.1f} s ({peak / store.num_documents:.0f} bytes a document)"
        for name, seconds, peak in found
    )
    return f"store of {store.num_documents:,} documents, {format}: {told}"


@contextmanager
def _own_memory() -> Iterator[Callable[[], int]]:
    """Yields a function: the peak of this process's memory since the block began, without mapped files, in bytes."""
    before, highest, ended = _anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLED_S):
            highest[0] = max(highest[0], _anonymous_bytes() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: highest[0]
    finally:
        ended.set()
        watcher.join()


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))


class _Sparse:
    """A file that leaves out what is zero."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def write(self, data: Any) -> int:
        values = np.frombuffer(data, dtype=np.uint8)
        if values.any():
            self._file.write(data)
        else:
            self._file.seek(len(values), os.SEEK_CUR)
        return len(values)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        self._file.truncate(self._file.tell())
        self._file.close()
        self.closed = True


def _write_sparse_store(path: Path, num_documents: int) -> None:
    import pyarrow as pa
    from tokenizers import Tokenizer, models

    from cluster.artefacts.manifest import FileEntry
    from cluster.artefacts.storage import commit, staging_directory
    from data_prep.token_writer import token_dtype, token_schema, write_sidecars

    special = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    words = [f"<{name}>" for name in special] + [f"w{number}" for number in range(5, 100)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    files, dtype = TOKEN_FILES.files(-(-num_documents // _PER_FILE)), token_dtype(len(words))
    schema = token_schema(dtype)
    staging = staging_directory(path, "benchmark")
    staging.mkdir(parents=True)
    for number, name in enumerate(files):
        first, end = number * _PER_FILE, min((number + 1) * _PER_FILE, num_documents)
        sink = _Sparse(staging / name)
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
            for begin in range(first, end, _PER_BATCH):
                writer.write_batch(_batch(begin, min(begin + _PER_BATCH, end), schema))
        sink.close()
    write_sidecars(staging, files, dtype, tokenizer.to_str().encode())
    sizes = {file.name: file.stat().st_size for file in sorted(staging.iterdir())}
    # Files are only compared in size, so that a hundred gigabytes of holes need not be hashed.
    entries = [FileEntry(name, size, _NO_HASH, None, None) for name, size in sizes.items()]
    config = {"vocab_size": len(words), "special_tokens": special}
    commit(staging, path, "tokens", config=config, files=entries)


def _batch(first: int, end: int, schema: Any) -> Any:
    """A record batch of the documents with these numbers: their ids are real, their tokens and sentences zeros."""
    import pyarrow as pa

    numbers = np.arange(first, end)
    letters = (numbers[:, None] >> np.arange(0, 4 * _ID_LETTERS, 4) & 15).astype(np.uint8) + ord("a")
    lengths = np.random.Generator(np.random.Philox(first)).integers(8, 32, size=end - first)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    each = np.arange(end - first + 1, dtype=np.int32)
    none = np.zeros(end - first, dtype=np.int32)
    ids = np.zeros(starts[-1], dtype=schema.field("input_ids").type.value_type.to_pandas_dtype())
    columns = [
        pa.StringArray.from_buffers(
            end - first, pa.py_buffer(each * np.int32(_ID_LETTERS)), pa.py_buffer(letters)
        ),
        pa.DictionaryArray.from_arrays(none, pa.array(["benchmark"])),
        pa.DictionaryArray.from_arrays(none, pa.array(["en"])),
        pa.ListArray.from_arrays(starts, ids),
        pa.ListArray.from_arrays(each, none),
    ]
    return pa.record_batch(columns, schema=schema)
