"""From documents to the n-grams of evaluation texts in them: the body of the task that reads the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.shards import ShardResult
from data_prep.decontaminate.edits import EditedText
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.documents import one_chunk, read_selected
from data_prep.layout import shard_file
from data_prep.selection import Selection, edit_texts, load_selection
from data_prep.text.words import split_words

BATCH_CHARACTERS = 1 << 20
"""Documents are searched together until they have this many characters."""
SCHEMA = pa.schema(
    [
        ("row", pa.uint32()),
        ("doc_id", pa.dictionary(pa.int32(), pa.string())),
        ("ngram", pa.uint32()),
        ("byte_start", pa.uint32()),
        ("byte_end", pa.uint32()),
    ]
)
"""One n-gram at one place; `byte_start` and `byte_end` refer to the text as the document shard holds it."""


@dataclass(frozen=True, slots=True)
class HitsSplit:
    """The input of one file of hits."""

    documents: Path
    """A document shard."""
    selection: Path
    """The selection of its rows and texts."""
    index: Path
    """Directory of the evaluation texts' n-grams."""
    index_fingerprint: str
    min_words: int


@dataclass(frozen=True, slots=True)
class Hits:
    """The hits in one document shard, ascending by row and place."""

    rows: np.ndarray
    """[hits] int64."""
    doc_ids: pa.Array
    """[hits] strings."""
    ngrams: np.ndarray
    """[hits] int64."""
    starts: np.ndarray
    """[hits] int64 bytes."""
    ends: np.ndarray
    """[hits] int64 bytes."""

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, mask: np.ndarray) -> Hits:
        """The hits for which `mask` is True."""
        doc_ids = self.doc_ids.filter(pa.array(mask))
        return Hits(self.rows[mask], doc_ids, self.ngrams[mask], self.starts[mask], self.ends[mask])


def hit_file(shard: int, num_shards: int) -> str:
    """File name of the hits in a document shard."""
    return shard_file("hits-", shard, num_shards, "parquet")


def hit_files(num_shards: int) -> list[str]:
    """File names, in the order of the document shards."""
    return [hit_file(shard, num_shards) for shard in range(num_shards)]


def find_hits(split: HitsSplit, path: Path) -> ShardResult:
    """Search the selected documents of a shard, without what was removed from them, for evaluation texts.

    Memory is bounded by a row group and the shard's largest document.
    """
    index = _load_index(split.index, split.index_fingerprint, split.min_words)
    num_hits = num_documents = 0
    with pq.ParquetWriter(str(path), SCHEMA, compression="zstd", write_statistics=False) as writer:
        for table in _search(split, index):
            writer.write_table(table)
            num_hits += table.num_rows
            num_documents += len(table["row"].unique())
    return ShardResult(rows=num_hits, stats={"documents_with_hits": num_documents})


def load_hits(path: Path) -> Hits:
    """Read the hits in one document shard."""
    table = pq.read_table(str(path), memory_map=False).combine_chunks()
    columns = {name: table[name].to_numpy().astype(np.int64) for name in SCHEMA.names if name != "doc_id"}
    doc_ids = pa.array(table["doc_id"].to_pylist(), type=pa.string())
    return Hits(columns["row"], doc_ids, columns["ngram"], columns["byte_start"], columns["byte_end"])


def _search(split: HitsSplit, index: NgramIndex) -> Iterator[pa.Table]:
    selection = load_selection(split.selection)
    position = 0
    for table in read_selected(split.documents, ("doc_id", "text"), selection.with_whole_texts()):
        own = selection.take(np.arange(position, position + table.num_rows))
        position += table.num_rows
        texts = edit_texts(one_chunk(table["text"]), own).to_pylist()
        for start, end in _batches(texts):
            words = split_words(texts[start:end])
            found = index.find(words)
            if len(found.words):
                numbers = words.text_of(found.words) + start
                ends = words.ends[found.words + found.counts - 1]
                places = _to_bytes(table["text"], own, numbers, words.places[found.words], ends)
                doc_ids = one_chunk(table["doc_id"].take(pa.array(numbers))).dictionary_encode()
                columns = [own.rows[numbers], doc_ids, found.ngrams, *places]
                yield pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _batches(texts: list[str]) -> Iterator[tuple[int, int]]:
    start = size = 0
    for number, text in enumerate(texts):
        size += len(text)
        if size >= BATCH_CHARACTERS or number == len(texts) - 1:
            yield start, number + 1
            start, size = number + 1, 0


def _to_bytes(
    documents: pa.ChunkedArray,
    selection: Selection,
    numbers: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Characters of edited texts as bytes of documents.

    Args:
        numbers: [hits] position in `documents` and `selection` of the document that each hit is in.
    """
    first, last = np.empty_like(starts), np.empty_like(ends)
    bounds = selection.first_spans
    for number in np.unique(numbers).tolist():
        spans = selection.spans[bounds[number] : bounds[number + 1]]
        edited = EditedText.of(documents[number].as_py(), spans)
        own = numbers == number
        first[own], last[own] = edited.to_document(starts[own], ends[own])
    return first, last


@lru_cache(maxsize=1)
def _load_index(directory: Path, fingerprint: str, min_words: int) -> NgramIndex:
    """The index, read once by a process that works on many shards; `fingerprint` identifies it."""
    return NgramIndex.load(directory, min_words)
