"""MinHash signatures and their bands: documents that share a band's key are taken for near-duplicates."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.config import NearDedup
from data_prep.dedup.records import RecordWriter, number_documents
from data_prep.dedup.shingles import shingle, text_blocks
from data_prep.dedup.survivors import Survivors, read_texts
from data_prep.hashing import mix
from data_prep.ragged import Ragged

KEYS = ("bucket",)
COLUMNS = {"bucket": "uint64", "document": "uint64"}


@dataclass(frozen=True, slots=True)
class BucketsSplit:
    """The input of the buckets of one document shard."""

    survivors: Survivors
    settings: NearDedup


def write_buckets(split: BucketsSplit, path: Path) -> ShardResult:
    """Write for every document the bucket that it falls into in each band."""
    # One task is one CPU; the library would otherwise start a thread for every core of the machine.
    os.environ["RAYON_NUM_THREADS"] = "1"
    own, settings = split.survivors, split.settings
    bands, rows_of_band = settings.shape
    with RecordWriter(path, COLUMNS) as writer:
        for rows, texts in read_texts(own.documents, own.load()):
            documents = number_documents(own.shard, rows)
            for first, block in text_blocks(texts):
                shingles = shingle(block, settings.ngram, fold_digits=settings.fold_digits)
                keys = band_keys(sign(shingles, bands * rows_of_band, settings.seed), bands, rows_of_band)
                # Texts without a word resemble nothing.
                has_words = shingles.lengths > 0
                numbers = documents[first : first + len(block)][has_words]
                run = {"bucket": keys[has_words].reshape(-1), "document": np.repeat(numbers, bands)}
                writer.write(run)
    return ShardResult(rows=writer.num_records)


def sign(shingles: Ragged, num_permutations: int, seed: int) -> np.ndarray:
    """[texts, num_permutations] uint32 MinHash signatures (Broder 1997).

    Two texts agree in one place with the probability of their n-grams' Jaccard similarity. Agreements in different
    places are a little less alike than independent ones, which makes the curve of `meeting_probability` steeper by up
    to 0.013 (measured on 20,000 pairs at each of four similarities).
    """
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]

    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        shingles.values, shingles.offsets.astype(np.uint64), num_permutations, seed
    )
    return np.array(matrix.to_rows(), dtype=np.uint32).reshape(len(shingles), num_permutations)


def band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """[texts, bands] uint64 hashes of each band's number and its `rows` values."""
    values = signatures[:, : bands * rows].reshape(-1, bands, rows).astype(np.uint64)
    keys = np.broadcast_to(mix(np.arange(bands, dtype=np.uint64)), values.shape[:2])
    for row in range(rows):
        keys = mix(keys ^ values[:, :, row])
    return keys
