"""From hits to the selection of a document shard: the body of the task that decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.decontaminate.config import DecontaminationConfig
from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.decontaminate.hits import Hits, load_hits
from data_prep.documents import read_row_groups
from data_prep.selection import Selection, load_selection, write_selection


@dataclass(frozen=True, slots=True)
class DecisionSplit:
    """The input of one selection."""

    documents: Path
    """A document shard."""
    selection: Path
    """The selection of earlier stages."""
    hits: Path
    counts: Path
    """`.npy` of [n-grams] uint32: the documents of the corpus that hold each n-gram."""
    settings: DecontaminationConfig
    min_characters: int
    """A document of which less is left after cutting is left out."""


def decide(split: DecisionSplit, path: Path) -> ShardResult:
    """Write the selection of a document shard without its overlaps with evaluation texts."""
    before = load_selection(split.selection)
    hits = overlaps(load_hits(split.hits), np.load(split.counts), split.settings.max_documents)
    cut = dict(_cut(split, before, hits)) if split.settings.action == "cut" else {}
    hit_rows = np.unique(hits.rows)
    after = _without(before, hit_rows, cut)
    write_selection(path, after)
    stats = {"documents_dropped": len(before) - len(after), "documents_cut": len(cut)}
    removed = {"bytes_cut": int(_total(after) - _total(before, after.rows))}
    return ShardResult(rows=len(after), stats=stats | removed)


def overlaps(hits: Hits, counts: np.ndarray, max_documents: int | None) -> Hits:
    """The hits of n-grams that occur in at most `max_documents` documents."""
    return hits if max_documents is None else hits.where(counts[hits.ngrams] <= max_documents)


def _cut(split: DecisionSplit, before: Selection, hits: Hits) -> Iterator[tuple[int, np.ndarray]]:
    """(row, its [spans, 2] bytes to remove) for the documents of which enough is left."""
    settings = split.settings
    bounds = before.first_spans
    for first, table in read_row_groups(split.documents, ["text"]):
        own = hits.where((hits.rows >= first) & (hits.rows < first + table.num_rows))
        for row in np.unique(own.rows).tolist():
            number = int(np.searchsorted(before.rows, row))
            spans = before.spans[bounds[number] : bounds[number + 1]]
            edited = EditedText.of(table["text"][row - first].as_py(), spans)
            mine = own.rows == row
            starts, ends = edited.from_document(own.starts[mine], own.ends[mine])
            wide = widen(edited.text, starts, ends, settings.window_characters)
            cuts, num_pieces = cut_short_pieces(len(edited.text), wide, settings.min_piece_characters)
            left = len(edited.text) - sum(end - start for start, end in cuts)
            if num_pieces <= settings.max_pieces and left >= max(1, split.min_characters):
                yield row, edited.spans_without(cuts)


def _without(before: Selection, hit_rows: np.ndarray, cut: dict[int, np.ndarray]) -> Selection:
    """The selection without the rows that were hit, except for those that were cut, which get their new spans."""
    bounds = before.first_spans
    rows, counts, spans = [], [], [np.empty((0, 2), dtype=np.int64)]
    hit = np.isin(before.rows, hit_rows)
    for number, row in enumerate(before.rows.tolist()):
        if hit[number] and row not in cut:
            continue
        own = cut.get(row, before.spans[bounds[number] : bounds[number + 1]])
        rows.append(row)
        counts.append(len(own))
        spans.append(own)
    return Selection(
        np.asarray(rows, np.int64), np.asarray(counts, np.int64), np.concatenate(spans), before.repeated_ids
    )


def _total(selection: Selection, rows: np.ndarray | None = None) -> int:
    """Bytes that a selection removes from its documents, or from those in `rows`."""
    if rows is not None:
        selection = selection.take(np.flatnonzero(np.isin(selection.rows, rows)))
    return int((selection.spans[:, 1] - selection.spans[:, 0]).sum())
