"""N-grams of evaluation texts in documents, and the report of them: every overlap, and a summary for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.shards import ShardResult
from data_prep.decontaminate.edits import EditedText
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.dedup.texts import join_texts, text_blocks
from data_prep.documents import one_chunk, read_selected
from data_prep.selection import Selection, edit_texts, load_selection
from data_prep.text.words import split_joined

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
        """The hits selected by `mask`."""
        doc_ids = self.doc_ids.filter(pa.array(mask))
        return Hits(self.rows[mask], doc_ids, self.ngrams[mask], self.starts[mask], self.ends[mask])


def find_hits(
    path: Path, *, documents: Path, selection: Path, index: Path, index_fingerprint: str, min_words: int
) -> ShardResult:
    """Search the selected documents of a shard, without what was removed from them, for evaluation texts.

    Memory is bounded by a row group and the shard's largest document.

    Args:
        index: directory of the evaluation texts' n-grams.
    """
    ngrams = _load_index(index, index_fingerprint, min_words)
    selected = load_selection(selection)
    position = 0
    num_hits = num_documents = 0
    with pq.ParquetWriter(str(path), SCHEMA, compression="zstd", write_statistics=False) as writer:
        for table in read_selected(documents, ("doc_id", "text"), selected.with_whole_texts()):
            own = selected.take(np.arange(position, position + table.num_rows))
            position += table.num_rows
            for hits in _search(table, own, ngrams):
                writer.write_table(hits)
                num_hits += hits.num_rows
                num_documents += len(hits["row"].unique())
    return ShardResult(rows=num_hits, stats={"documents_with_hits": num_documents})


def load_hits(path: Path) -> Hits:
    """Read the hits in one document shard."""
    table = pq.read_table(str(path), memory_map=False).combine_chunks()
    columns = {name: table[name].to_numpy().astype(np.int64) for name in SCHEMA.names if name != "doc_id"}
    doc_ids = pa.array(table["doc_id"].to_pylist(), type=pa.string())
    return Hits(columns["row"], doc_ids, columns["ngram"], columns["byte_start"], columns["byte_end"])


def _search(documents: pa.Table, own: Selection, index: NgramIndex) -> Iterator[pa.Table]:
    """The hits in some documents, a block of texts at a time."""
    for first, texts in text_blocks(edit_texts(one_chunk(documents["text"]), own)):
        words = split_joined(*join_texts(texts))
        ngrams, begins, counts = index.find(words)
        if len(begins):
            numbers = words.text_of(begins) + first
            ends = words.ends[begins + counts - 1]
            places = _to_bytes(documents["text"], own, numbers, words.places[begins], ends)
            doc_ids = one_chunk(documents["doc_id"].take(pa.array(numbers))).dictionary_encode()
            columns = [own.rows[numbers], doc_ids, ngrams, *places]
            yield pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


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
    for number in np.unique(numbers).tolist():
        edited = EditedText(documents[number].as_py(), selection.spans[number])
        own = numbers == number
        first[own], last[own] = edited.to_document(starts[own], ends[own])
    return first, last


@lru_cache(maxsize=1)
def _load_index(directory: Path, fingerprint: str, min_words: int) -> NgramIndex:
    """The index, read once by a process that works on many shards; `fingerprint` identifies it."""
    return NgramIndex.load(directory, min_words)


REPORT_FILE = "report.jsonl"
SHOWN_NGRAMS = 10
"""Number of n-grams shown: those in the most documents."""


@dataclass(slots=True)
class Tally:
    """The evaluation texts of the index, and which of them were found."""

    texts: pa.Table
    """`task`, `example`, `words`, `searched` of every evaluation text."""
    found: dict[str, set[str]] = field(default_factory=dict)
    """By task, the examples found."""
    documents: dict[str, int] = field(default_factory=dict)
    """By task, the documents with an overlap."""

    def overlaps(self, index: NgramIndex, hits: Hits, after: Selection) -> Iterator[dict[str, Any]]:
        """The overlaps in one document shard, by row, place, task and example; they are counted on the way.

        An overlap is one of a document and an evaluation example; n-grams that touch are one. Memory is bounded by the
        shard's hits.

        Yields:
            `doc_id`, `task`, `example`; `byte_start` and `byte_end` in the document as its shard holds it; `ngrams`,
            their number; `text`, the words of the first; `action`: what became of the document, `dropped` or `cut`.
        """
        kept = set(after.rows.tolist())
        bounds = np.searchsorted(index.occurrences["ngram"], np.arange(len(index.ngrams) + 1))
        tasks, examples = self.texts["task"].to_pylist(), self.texts["example"].to_pylist()
        edges = (np.flatnonzero(np.diff(hits.rows)) + 1).tolist()
        runs = zip([0, *edges], [*edges, len(hits)], strict=True) if len(hits) else ()
        for first, last in runs:
            row, doc_id = int(hits.rows[first]), hits.doc_ids[first].as_py()
            action = "cut" if row in kept else "dropped"
            overlaps: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for hit in range(first, last):
                ngram, start, end = int(hits.ngrams[hit]), int(hits.starts[hit]), int(hits.ends[hit])
                texts = index.occurrences["text"][bounds[ngram] : bounds[ngram + 1]].tolist()
                for task, example in dict.fromkeys((tasks[text], examples[text]) for text in texts):
                    own = overlaps.setdefault((task, example), [])
                    if own and start <= own[-1]["byte_end"]:
                        own[-1]["byte_end"] = max(own[-1]["byte_end"], end)
                        own[-1]["ngrams"] += 1
                        continue
                    place = {"byte_start": start, "byte_end": end, "ngrams": 1}
                    shown = {"text": index.spell(ngram), "action": action}
                    own.append({"doc_id": doc_id, "task": task, "example": example} | place | shown)
            for task in {task for task, _ in overlaps}:
                self.documents[task] = self.documents.get(task, 0) + 1
            for task, example in overlaps:
                self.found.setdefault(task, set()).add(example)
            every = [overlap for own in overlaps.values() for overlap in own]
            yield from sorted(every, key=itemgetter("byte_start", "task", "example"))

    def summary(self) -> dict[str, dict[str, Any]]:
        """Counts by task: `examples`, among them `examples_searched` (with a text of enough words) and
        `examples_found`, their `share_found`, and `documents` with an overlap."""
        examples: dict[str, dict[str, bool]] = {}
        for row in self.texts.to_pylist():
            own = examples.setdefault(row["task"], {})
            own[row["example"]] = own.get(row["example"], False) or row["searched"]
        found = {task: len(self.found.get(task, ())) for task in examples}
        return {
            task: {
                "examples": len(searched),
                "examples_searched": sum(searched.values()),
                "examples_found": found[task],
                "share_found": round(found[task] / len(searched), 6),
                "documents": self.documents.get(task, 0),
            }
            for task, searched in examples.items()
        }


def count_documents(num_ngrams: int, shards: Iterable[Hits]) -> np.ndarray:
    """[n-grams] uint32: how many documents of all shards hold each n-gram."""
    counts = np.zeros(num_ngrams, dtype=np.uint32)
    for hits in shards:
        pairs = np.unique(np.stack([hits.rows, hits.ngrams], axis=1), axis=0)
        counts += np.bincount(pairs[:, 1], minlength=num_ngrams).astype(np.uint32)
    return counts


def most_frequent(index: NgramIndex, counts: np.ndarray) -> list[dict[str, Any]]:
    """`text` and `documents` of the n-grams that are in the most documents."""
    order = np.lexsort((np.arange(len(counts)), -counts.astype(np.int64)))[:SHOWN_NGRAMS]
    return [{"text": index.spell(n), "documents": int(counts[n])} for n in order.tolist() if counts[n]]
