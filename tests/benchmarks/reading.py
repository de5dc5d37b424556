"""Shuffled batches of 256 x 512 tokens as int64 tensors, against what else reads tokens from disk.

All read the same tokens: ours cut and packed from documents of natural lengths as they are read, with special tokens
and boundaries; the peers from 512-token blocks made beforehand. One thread each, files in the page cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from cluster.artefacts.storage import commit, staging_directory
from data_prep.layout import TOKEN_FILES
from data_prep.ragged import Ragged
from data_prep.token_store import TokenStore
from data_prep.token_writer import EncodedBatch, token_dtype, write_sidecars, write_token_shard
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.mixture import Sampling, StoreShare
from pipeline.samples.noise import Noise
from tests.benchmarks.compare import Comparison, compare_all, peer_name
from tests.pipeline.materials import ANY_TOKENIZER

BATCH, LENGTH, VOCAB_SIZE = 256, 512, 50_257
NUM_DOCUMENTS, NUM_FILES = 60_000, 4
BATCHES = 100
"""Batches that one call reads."""
ROUNDS = 7


def run() -> Iterator[Comparison]:
    """Samples per second."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        store = TokenStore.open(write_store(Path(scratch) / "tokens", natural_lengths(NUM_DOCUMENTS)))
        peers = {
            peer_name("datasets", "torch format"): _datasets(store, Path(scratch)),
            peer_name("litdata", "StreamingDataset, TokensLoader, shuffle"): _litdata(store, Path(scratch)),
            "torch, a loop over samples": _loop(store),
            peer_name("numpy", "take"): _take(store, Path(scratch)),
        }
        ours = {
            f"reading, {BATCH} x {LENGTH}, {format}": _ours(
                TokenDataset(
                    [StoreShare(store)],
                    Sampling(sequence_length=LENGTH, seed=1, held_out=0.0, format=format),
                )
            )
            for format in ("contiguous", "best_fit")
        }
        for read in (*ours.values(), *peers.values()):
            read()
        yield from compare_all(ours, peers, "samples", BATCHES * BATCH, rounds=ROUNDS)


def natural_lengths(count: int) -> np.ndarray:
    """int64 tokens of documents as encyclopaedias have them: nearly log-normal, median 300."""
    normal = np.random.Generator(np.random.Philox(1)).standard_normal(count)
    return np.clip(np.exp(5.7 + 0.9 * normal), 8, 20_000).astype(np.int64)


def write_store(path: Path, lengths: np.ndarray) -> Path:
    """Commit documents of random tokens, in sentences of about 25, as a token store."""
    staging = staging_directory(path, "benchmark")
    staging.mkdir(parents=True)
    files, dtype = TOKEN_FILES.files(NUM_FILES), token_dtype(VOCAB_SIZE)
    for number, (file, own) in enumerate(zip(files, np.array_split(lengths, NUM_FILES), strict=True)):
        noise = Noise.of("benchmark", number)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(own)])
        positions = np.arange(offsets[-1])
        begins = noise.at("sentence", positions).integers(25) == 0
        begins[offsets[:-1]] = True
        owner = np.searchsorted(offsets, positions[begins], side="right") - 1
        sentences = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(own)))])
        batch = EncodedBatch(
            doc_ids=pa.array([f"benchmark:{number}-{document}" for document in range(len(own))]),
            langs=pa.array(["en"] * len(own)),
            input_ids=Ragged(
                (5 + noise.at("token", positions).integers(VOCAB_SIZE - 5)).astype(dtype), offsets
            ),
            sentence_starts=Ragged((positions[begins] - offsets[owner]).astype(np.int32), sentences),
        )
        write_token_shard(staging / file, "benchmark", ["en"], [batch], dtype)
    write_sidecars(staging, files, dtype, ANY_TOKENIZER)
    special = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    commit(staging, path, "tokens", config={"vocab_size": VOCAB_SIZE, "special_tokens": special})
    return path


def _ours(dataset: TokenDataset) -> Callable[[], object]:
    place = 0

    def read() -> None:
        nonlocal place
        for _ in range(BATCHES):
            _require_batch(torch.from_numpy(dataset.batch(np.arange(place, place + BATCH)).input_ids))
            place += BATCH

    return read


def _blocks(store: TokenStore) -> np.ndarray:
    """[blocks, 512] the tokens of the store end to end."""
    tokens = np.concatenate([store.tokens(document) for document in range(store.num_documents)])
    return tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)


def _datasets(store: TokenStore, scratch: Path) -> Callable[[], object]:
    from datasets import Dataset, load_from_disk

    blocks = _blocks(store)
    values = pa.array(blocks.reshape(-1))
    rows = pa.ListArray.from_arrays(pa.array(np.arange(len(blocks) + 1, dtype=np.int32) * LENGTH), values)
    Dataset(pa.table({"input_ids": rows})).save_to_disk(str(scratch / "datasets"))
    data = load_from_disk(str(scratch / "datasets")).with_format("torch", dtype=torch.int64)
    order, place = np.random.Generator(np.random.Philox(2)).permutation(len(blocks)), 0

    def read() -> None:
        nonlocal place
        for _ in range(BATCHES):
            _require_batch(data[np.take(order, np.arange(place, place + BATCH), mode="wrap")]["input_ids"])
            place += BATCH

    return read


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
    samples = iter(data)

    def read() -> None:
        nonlocal samples
        for _ in range(BATCHES):
            rows = []
            while len(rows) < BATCH:
                try:
                    rows.append(next(samples))
                except StopIteration:
                    samples = iter(data)
            _require_batch(torch.stack(rows).long())

    return read


def _loop(store: TokenStore) -> Callable[[], object]:
    """What a script would do with the array of all blocks in memory."""
    blocks = _blocks(store)
    order, place = np.random.Generator(np.random.Philox(2)).permutation(len(blocks)), 0

    def read() -> None:
        nonlocal place
        for _ in range(BATCHES):
            chosen = np.take(order, np.arange(place, place + BATCH), mode="wrap")
            _require_batch(torch.stack([torch.from_numpy(blocks[row].astype(np.int64)) for row in chosen]))
            place += BATCH

    return read


def _take(store: TokenStore, scratch: Path) -> Callable[[], object]:
    """The rows as NumPy copies them fastest from a mapped file: first in the type of the file, into a buffer."""
    np.save(scratch / "blocks.npy", _blocks(store))
    # Indexing asks every mapped array for its class.
    blocks = np.asarray(np.load(scratch / "blocks.npy", mmap_mode="r"))
    rows = np.empty((BATCH, LENGTH), dtype=blocks.dtype)
    order, place = np.random.Generator(np.random.Philox(2)).permutation(len(blocks)), 0

    def read() -> None:
        nonlocal place
        for _ in range(BATCHES):
            chosen = np.take(order, np.arange(place, place + BATCH), mode="wrap")
            # Another mode would copy once more, so as not to leave half a result behind.
            np.take(blocks, chosen, axis=0, out=rows, mode="clip")
            _require_batch(torch.from_numpy(rows.astype(np.int64)))
            place += BATCH

    return read


def _require_batch(ids: object) -> None:
    assert isinstance(ids, torch.Tensor)
    assert (ids.dtype, tuple(ids.shape)) == (torch.int64, (BATCH, LENGTH))
