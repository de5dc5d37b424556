"""Selected documents to those parts of them that no evaluation set holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.manifest import Manifest
from cluster.artefacts.shard_records import ShardRecord
from cluster.shards import ShardResult, WriteShard, run_in_task
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationTexts
from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.decontaminate.hits import REPORT_FILE, Hits, Tally, load_hits, most_frequent
from data_prep.decontaminate.steps import Places, Steps, identify, read_texts
from data_prep.documents import read_row_groups
from data_prep.layout import DECONTAMINATION, SELECTION_FILES
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.workspace import Workspace

VERSION = 2
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""


def decontaminate(
    job: Workspace, documents: Manifest, selection: Manifest, texts: EvaluationTexts
) -> Manifest:
    """Make the `decontamination` artefact: the selection of every document shard, and `report.jsonl`.

    It depends on the documents, their selection, the evaluation texts and the settings alone; the steps that lead
    to it are made only when one of its files has to be, and may be deleted afterwards.

    Raises:
        ConfigError: a task is unknown, or one of its files is not what its name says.
        MissingInputError: an evaluation set does not exist.
    """
    settings, least = job.config.decontaminate, job.config.min_characters
    digest, evaluation_files = identify(texts(settings))
    steps = Steps(job, documents, selection, texts, digest)
    places = steps.places
    config = {"version": VERSION, **settings.model_dump(mode="json", exclude={"data"})}
    config |= {"min_characters": least, "evaluation_texts": digest}

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        steps.make()
        return run_in_task(_write_report, directory, places) | {"sources": job.by_source(records)}

    def make(shard: int) -> WriteShard:
        return partial(
            decide,
            documents=job.documents_path(documents, shard),
            selection=job.selection_path(selection, shard),
            hits=places.hits(shard),
            counts=places.counts,
            settings=settings,
            min_characters=least,
        )

    return job.build(
        DECONTAMINATION,
        SELECTION_FILES.files(job.num_shards),
        make,
        lambda shard: [config, documents.fingerprint, selection.fingerprint, shard],
        [entry.size_bytes for entry in documents.files],
        config=config,
        inputs=[job.entry(documents), job.entry(selection), *evaluation_files],
        finish=finish,
        before=steps.make,
    )


def _write_report(directory: Path, places: Places) -> dict[str, Any]:
    """Write `report.jsonl`, shard by shard; returns what the manifest says about it."""
    settings = places.settings
    index, counts = places.load_index(), np.load(places.counts)
    tally = Tally(read_texts(places.evaluation))
    num_overlaps = 0
    with (directory / REPORT_FILE).open("wb") as report:
        for shard, file in enumerate(SELECTION_FILES.files(places.num_shards)):
            hits = overlaps(load_hits(places.hits(shard)), counts, settings.max_documents)
            for overlap in tally.overlaps(index, hits, load_selection(directory / file)):
                report.write(orjson.dumps(asdict(overlap), option=orjson.OPT_APPEND_NEWLINE))
                num_overlaps += 1
    ignored = 0 if settings.max_documents is None else int((counts > settings.max_documents).sum())
    return {
        "overlaps": num_overlaps,
        "ngrams_searched": len(index.ngrams),
        "ngrams_found": int((counts > 0).sum()),
        "ngrams_ignored": ignored,
        "most_frequent": most_frequent(index, counts),
        "tasks": tally.summary(),
    }


def decide(
    path: Path,
    *,
    documents: Path,
    selection: Path,
    hits: Path,
    counts: Path,
    settings: DecontaminationConfig,
    min_characters: int,
) -> ShardResult:
    """Write the selection of a document shard without its overlaps with evaluation texts.

    Args:
        selection: of earlier stages.
        counts: `.npy` of [n-grams] uint32: the documents of the corpus that hold each n-gram.
        min_characters: a document that is shorter after cutting is left out.
    """
    before = load_selection(selection)
    found = overlaps(load_hits(hits), np.load(counts), settings.max_documents)
    cut = dict(_cut(documents, before, found, settings, min_characters)) if settings.action == "cut" else {}
    hit_rows = np.unique(found.rows)
    after = _without(before, hit_rows, cut)
    write_selection(path, after)
    stats = {"documents_dropped": len(before) - len(after), "documents_cut": len(cut)}
    removed, removed_before = (
        int(np.diff(each.spans, axis=1).sum())
        for each in (after, before.take(np.flatnonzero(np.isin(before.rows, after.rows))))
    )
    return ShardResult(rows=len(after), stats=stats | {"bytes_cut": removed - removed_before})


def overlaps(hits: Hits, counts: np.ndarray, max_documents: int | None) -> Hits:
    """The hits of n-grams that occur in at most `max_documents` documents."""
    return hits if max_documents is None else hits.where(counts[hits.ngrams] <= max_documents)


def _cut(
    documents: Path, before: Selection, hits: Hits, settings: DecontaminationConfig, min_characters: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(row, its [spans, 2] bytes to remove) for the documents that stay long enough."""
    bounds = before.first_spans
    for first, table in read_row_groups(documents, ["text"]):
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
            if num_pieces <= settings.max_pieces and left >= max(1, min_characters):
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
