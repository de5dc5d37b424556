"""The report for people and programs: every overlap in `report.jsonl`, and a summary for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.decontaminate.hits import Hits
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.selection import Selection

REPORT_FILE = "report.jsonl"
SHOWN_NGRAMS = 10
"""Of the n-grams in the most documents, how many are shown."""


@dataclass(slots=True)
class Overlap:
    """Overlap of a document and an evaluation example; n-grams that touch are one overlap."""

    doc_id: str
    task: str
    example: str
    byte_start: int
    byte_end: int
    """In the document as its shard holds it."""
    ngrams: int
    text: str
    """The words of the first n-gram."""
    action: str
    """`dropped` or `cut`: what became of the document."""


@dataclass(slots=True)
class Tally:
    """The evaluation texts of the index, and which of them were found."""

    texts: pa.Table
    """`task`, `example`, `words`, `searched` of every evaluation text."""
    found: dict[str, set[str]] = field(default_factory=dict)
    """By task, the examples found."""
    documents: dict[str, int] = field(default_factory=dict)
    """By task, the documents with an overlap."""

    def overlaps(self, index: NgramIndex, hits: Hits, after: Selection) -> Iterator[Overlap]:
        """The overlaps in one document shard, by row, place, task and example; they are counted on the way.

        Memory is bounded by the shard's hits.
        """
        kept = set(after.rows.tolist())
        bounds = np.searchsorted(index.occurrences["ngram"], np.arange(len(index.ngrams) + 1))
        tasks, examples = self.texts["task"].to_pylist(), self.texts["example"].to_pylist()
        for first, last in _same_row(hits.rows):
            row, doc_id = int(hits.rows[first]), hits.doc_ids[first].as_py()
            action = "cut" if row in kept else "dropped"
            overlaps: dict[tuple[str, str], list[Overlap]] = {}
            for hit in range(first, last):
                ngram, start, end = int(hits.ngrams[hit]), int(hits.starts[hit]), int(hits.ends[hit])
                texts = index.occurrences["text"][bounds[ngram] : bounds[ngram + 1]].tolist()
                for key in dict.fromkeys((tasks[text], examples[text]) for text in texts):
                    own = overlaps.setdefault(key, [])
                    if own and start <= own[-1].byte_end:
                        own[-1].byte_end = max(own[-1].byte_end, end)
                        own[-1].ngrams += 1
                    else:
                        own.append(Overlap(doc_id, *key, start, end, 1, index.spell(ngram), action))
            for task in {task for task, _ in overlaps}:
                self.documents[task] = self.documents.get(task, 0) + 1
            for task, example in overlaps:
                self.found.setdefault(task, set()).add(example)
            every = [overlap for own in overlaps.values() for overlap in own]
            yield from sorted(every, key=lambda o: (o.byte_start, o.task, o.example))

    def summary(self) -> dict[str, dict[str, Any]]:
        """Counts by task: `examples`, among them `examples_searched` (with a text of enough words) and
        `examples_found`, their `share_found`, and `documents` with an overlap."""
        every: dict[str, set[str]] = {}
        searched: dict[str, set[str]] = {}
        for row in self.texts.to_pylist():
            every.setdefault(row["task"], set()).add(row["example"])
            searched.setdefault(row["task"], set())
            if row["searched"]:
                searched[row["task"]].add(row["example"])
        return {
            task: {
                "examples": len(examples),
                "examples_searched": len(searched[task]),
                "examples_found": len(self.found.get(task, ())),
                "share_found": round(len(self.found.get(task, ())) / len(examples), 6),
                "documents": self.documents.get(task, 0),
            }
            for task, examples in every.items()
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


def _same_row(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) position of every run of equal rows."""
    edges = np.flatnonzero(np.diff(rows)) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True) if len(rows) else ()
