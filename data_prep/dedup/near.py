"""Near-duplicates: MinHash signatures and their bands, and exact similarities of the documents that share a band."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from cluster.artefacts.storage import contents_of
from cluster.shards import ShardResult
from data_prep.dedup.config import NearDedup
from data_prep.dedup.graph import EDGES, both_ways, distinct
from data_prep.dedup.records import ROW_BITS, RecordWriter, documents_of, in_blocks, read_range, rows_of
from data_prep.dedup.texts import Survivors, read_blocks, shingle
from data_prep.hashing import mix
from data_prep.layout import RECORD_FILES, REPAIR
from data_prep.ragged import Ragged
from data_prep.selection import Selection

COLUMNS = {"bucket": "uint64", "document": "uint64"}


def write_buckets(survivors: Survivors, settings: NearDedup, path: Path) -> ShardResult:
    """Write for every document the bucket that it falls into in each band."""
    # One task is one CPU; the library would otherwise start a thread for every core of the machine.
    os.environ["RAYON_NUM_THREADS"] = "1"
    bands, rows_of_band = settings.shape
    with RecordWriter(path, COLUMNS) as writer:
        for documents, texts in read_blocks(survivors.documents, survivors.shard, survivors.load()):
            shingles = shingle(texts, settings.ngram, fold_digits=settings.fold_digits)
            keys = band_keys(sign(shingles, bands * rows_of_band, settings.seed), bands, rows_of_band)
            # Texts without a word resemble nothing.
            has_words = shingles.lengths > 0
            numbers = np.repeat(documents[has_words], bands)
            writer.write({"bucket": keys[has_words].reshape(-1), "document": numbers})
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


_SCHEMA = pa.schema([("document", pa.uint64()), ("shingles", pa.large_list(pa.uint64()))])


def write_shingles(
    path: Path, *, survivors: Survivors, pairs: Path, ngram: int, fold_digits: bool
) -> ShardResult:
    """Write the different n-grams of every document of a shard that is in a candidate pair, sorted; in the order of
    documents, a block of texts at a time.

    Args:
        pairs: directory of candidate pairs, each from both ends.
    """
    rows = np.empty(0, dtype=np.int64)
    for block in in_blocks(read_range(pairs, *documents_of(survivors.shard))):
        rows = np.union1d(rows, rows_of(block["node"]))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        for documents, texts in read_blocks(survivors.documents, survivors.shard, Selection.whole(rows)):
            grams = shingle(texts, ngram, fold_digits=fold_digits)
            sets = Ragged.of([np.unique(grams[row]) for row in range(len(grams))])
            shingles = pa.LargeListArray.from_arrays(pa.array(sets.offsets), pa.array(sets.values))
            writer.write_batch(pa.record_batch([pa.array(documents), shingles], schema=_SCHEMA))
    return ShardResult(rows=len(rows))


def link_similar(
    path: Path, *, pairs: Path, shingles: Path, shard: int, num_shards: int, threshold: float
) -> ShardResult:
    """Write the similar ones of the candidate pairs with their later document in the shard, each also from its other
    end.

    Args:
        shingles: directory of the n-grams of all candidates, a file for each document shard.
        threshold: least Jaccard similarity of an edge.
    """
    own = _ShingleFile(shingles, shard, num_shards)
    with RecordWriter(path, EDGES) as writer:
        for block in in_blocks(read_range(pairs, *documents_of(shard))):
            found = distinct(block["node"], block["other"])
            earlier = found["other"] < found["node"]
            # By the other document, so that its file is opened once.
            node, other = found["node"][earlier], found["other"][earlier]
            order = np.lexsort([node, other])
            node, other = node[order], other[order]
            similar = np.zeros(len(node), dtype=bool)
            shards = (other >> np.uint64(ROW_BITS)).astype(np.int64)
            for number in np.unique(shards).tolist():
                theirs = own if number == shard else _ShingleFile(shingles, number, num_shards)
                for place in np.flatnonzero(shards == number).tolist():
                    both = own.of(int(node[place])), theirs.of(int(other[place]))
                    similar[place] = jaccard(*both) >= threshold
            writer.write(both_ways({"node": node[similar], "other": other[similar]}))
    return ShardResult(rows=writer.num_records)


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Similarity of two sets, given as sorted arrays of different values: |A & B| / |A | B|."""
    joined = np.sort(np.concatenate([first, second]), kind="stable")
    shared = int((joined[1:] == joined[:-1]).sum())
    return shared / max(1, len(joined) - shared)


class _ShingleFile:
    """The n-grams of the candidates of one document shard, mapped into memory."""

    def __init__(self, directory: Path, shard: int, num_shards: int) -> None:
        """
        Raises:
            CorruptArtefactError: the file is unreadable.
        """
        path = directory / RECORD_FILES.file(shard, num_shards)
        with (
            contents_of(path, next_step=REPAIR),
            pa.memory_map(str(path)) as mapped,
            pa.ipc.open_file(mapped) as file,
        ):
            batches = [file.get_batch(number).columns for number in range(file.num_record_batches)]
            # Views of the mapped file: documents, offsets, values.
            self._batches = [
                (documents.to_numpy(), shingles.offsets.to_numpy(), shingles.values.to_numpy())
                for documents, shingles in batches
            ]
        self._firsts = np.array([documents[0] for documents, _, _ in self._batches], dtype=np.uint64)

    def of(self, document: int) -> np.ndarray:
        """[n] uint64 different n-grams of a document, ascending."""
        key = np.uint64(document)
        documents, offsets, values = self._batches[int(np.searchsorted(self._firsts, key, side="right")) - 1]
        row = int(np.searchsorted(documents, key))
        return values[offsets[row] : offsets[row + 1]]
