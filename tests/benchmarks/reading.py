"""Shuffled batches of 256 x 512 tokens as int64 tensors, against what else reads tokens from disk.

All read the same tokens: ours cut and packed from documents of natural lengths as they are read, with special tokens
and boundaries; the peers from 512-token blocks made beforehand. One thread each, files in the page cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from data_prep.token_store import TokenStore
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.mixture import Sampling, StoreShare
from tests.benchmarks.corpus import write_random_store
from tests.benchmarks.harness import Comparison, compare_all, peer_name

BATCH, LENGTH, VOCAB_SIZE = 256, 512, 50_257
NUM_DOCUMENTS = 60_000
BATCHES = 100
"""Batches that one call reads."""


def run() -> Iterator[Comparison]:
    """Samples per second."""
    torch.set_num_threads(1)
    generator = np.random.Generator(np.random.Philox(1))
    # An encyclopaedia's lengths are nearly log-normal.
    lengths = np.clip(np.exp(5.7 + 0.9 * generator.standard_normal(NUM_DOCUMENTS)), 8, 20_000).astype(int)
    with tempfile.TemporaryDirectory() as scratch:
        store = TokenStore.open(write_random_store(Path(scratch) / "tokens", lengths, VOCAB_SIZE))
        tokens = np.concatenate([store.tokens(document) for document in range(store.num_documents)])
        blocks = tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)
        order = generator.permutation(len(blocks))
        peers = {
            peer_name("datasets", "torch format"): _datasets(blocks, order, Path(scratch)),
            peer_name("litdata", "StreamingDataset, TokensLoader, shuffle"): _litdata(store, Path(scratch)),
            peer_name("numpy", "take"): _take(blocks, order, Path(scratch)),
        }
        ours = {
            f"reading, {BATCH} x {LENGTH}, {each}": _ours(store, each) for each in ("contiguous", "best_fit")
        }
        for read in (*ours.values(), *peers.values()):
            read()
        yield from compare_all(ours, peers, "samples", BATCHES * BATCH, rounds=7)


def _in_batches(batch_of: Callable[[np.ndarray], torch.Tensor]) -> Callable[[], object]:
    """A call that reads the next `BATCHES` batches, each of which `batch_of` makes of its positions in the order."""
    place = 0

    def read() -> None:
        nonlocal place
        for _ in range(BATCHES):
            ids = batch_of(np.arange(place, place + BATCH))
            assert (ids.dtype, tuple(ids.shape)) == (torch.int64, (BATCH, LENGTH))
            place += BATCH

    return read


def _ours(store: TokenStore, format: str) -> Callable[[], object]:
    sampling = Sampling(sequence_length=LENGTH, seed=1, held_out=0.0, format=format)  # pyright: ignore[reportArgumentType]
    dataset = TokenDataset([StoreShare(store)], sampling)
    return _in_batches(lambda positions: torch.from_numpy(dataset.batch(positions).input_ids))


def _datasets(blocks: np.ndarray, order: np.ndarray, scratch: Path) -> Callable[[], object]:
    import pyarrow as pa
    from datasets import Dataset, load_from_disk

    offsets = pa.array(np.arange(len(blocks) + 1, dtype=np.int32) * LENGTH)
    rows = pa.ListArray.from_arrays(offsets, pa.array(blocks.reshape(-1)))
    Dataset(pa.table({"input_ids": rows})).save_to_disk(str(scratch / "datasets"))
    data = load_from_disk(str(scratch / "datasets")).with_format("torch", dtype=torch.int64)
    return _in_batches(lambda positions: data[np.take(order, positions, mode="wrap")]["input_ids"])


def _litdata(store: TokenStore, scratch: Path) -> Callable[[], object]:
    from litdata import StreamingDataset  # pyright: ignore[reportMissingImports]
    from litdata.streaming.item_loader import TokensLoader  # pyright: ignore[reportMissingImports]
    from litdata.streaming.writer import BinaryWriter  # pyright: ignore[reportMissingImports]

    folder = scratch / "litdata"
    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(LENGTH))
    for document in range(store.num_documents):
        writer.add_item(document, torch.from_numpy(store.tokens(document).copy()))
    writer.done()
    writer.merge()
    data = StreamingDataset(str(folder), item_loader=TokensLoader(LENGTH), shuffle=True)

    def endless() -> Iterator[torch.Tensor]:
        while True:
            yield from data

    samples = endless()
    return _in_batches(lambda positions: torch.stack([next(samples) for _ in positions]).long())


def _take(blocks: np.ndarray, order: np.ndarray, scratch: Path) -> Callable[[], object]:
    """The rows as NumPy copies them fastest from a mapped file: first in the type of the file, into a buffer."""
    np.save(scratch / "blocks.npy", blocks)
    # Indexing asks every mapped array for its class.
    mapped = np.asarray(np.load(scratch / "blocks.npy", mmap_mode="r"))
    rows = np.empty((BATCH, LENGTH), dtype=mapped.dtype)

    def batch_of(positions: np.ndarray) -> torch.Tensor:
        # Another mode would copy once more, so as not to leave half a result behind.
        np.take(mapped, np.take(order, positions, mode="wrap"), axis=0, out=rows, mode="clip")
        return torch.from_numpy(rows.astype(np.int64))

    return _in_batches(batch_of)
