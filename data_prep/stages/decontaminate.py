"""Selected documents to those parts of them that no evaluation set holds.

Two artefacts in `work/` lead there: the n-grams of the evaluation texts, and where the documents hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cluster.artefacts.manifest import InputEntry, Manifest, hash_file
from cluster.artefacts.shard_records import ShardRecord
from cluster.shards import ShardResult, WriteShard, run_in_task
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText, EvaluationTexts
from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.decontaminate.hits import (
    REPORT_FILE,
    Hits,
    Tally,
    count_documents,
    find_hits,
    load_hits,
    most_frequent,
)
from data_prep.decontaminate.ngrams import NgramIndex, num_ngrams, save_array
from data_prep.documents import read_row_groups
from data_prep.layout import DECONTAMINATION, HIT_FILES, SELECTION_FILES
from data_prep.ragged import Ragged
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.text.words import split_words
from data_prep.workspace import Workspace

VERSION = 2
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
STEPS_VERSION = 3
"""Raised when the code changes what a step makes, so that older work does not count as current."""
EVALUATION, HITS = "evaluation-ngrams", "decontamination-hits"
TEXTS_FILE = "texts.parquet"
_COUNTS_FILE = "document_counts.npy"
_SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("example", pa.string()),
        ("text", pa.string()),
        ("words", pa.uint32()),
        ("searched", pa.bool_()),
    ]
)


def decontaminate(job: Workspace, selection: Manifest, texts: EvaluationTexts) -> Manifest:
    """Make the `decontamination` artefact: the selection of every document shard, and `report.jsonl`.

    It depends on the documents, their selection, the evaluation texts and the settings alone; the steps that lead
    to it are made only when one of its files has to be, and may be deleted afterwards.

    Raises:
        ConfigError: a task is unknown, or one of its files is not what its name says.
        MissingInputError: an evaluation set does not exist.
    """
    settings, least = job.config.decontaminate, job.config.min_characters
    digest, evaluation_files = identify(texts(settings))
    hits = job.directory(HITS)

    def make_steps() -> None:
        _find_hits(job, selection, _index_texts(job, texts, digest))

    config = {"version": VERSION, **settings.model_dump(mode="json", exclude={"data"})}
    config |= {"min_characters": least, "evaluation_texts": digest}

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        make_steps()
        found = run_in_task(
            _write_report, directory, len(job.shards), hits, job.directory(EVALUATION), settings
        )
        return found | {"sources": job.by_source(records)}

    def make(shard: int) -> WriteShard:
        return partial(
            decide,
            documents=job.documents_path(shard),
            selection=job.selection_path(selection, shard),
            hits=hits / HIT_FILES.file(shard, len(job.shards)),
            counts=hits / _COUNTS_FILE,
            settings=settings,
            min_characters=least,
        )

    return job.build(
        DECONTAMINATION,
        SELECTION_FILES,
        make,
        config=config,
        inputs=[job.documents, selection, *evaluation_files],
        finish=finish,
        before=make_steps,
    )


def _write_report(
    directory: Path, num_shards: int, hits: Path, evaluation: Path, settings: DecontaminationConfig
) -> dict[str, Any]:
    """Write `report.jsonl`, shard by shard; returns what the manifest says about it."""
    index, counts = NgramIndex.load(evaluation, settings.shortest), np.load(hits / _COUNTS_FILE)
    tally = Tally(read_texts(evaluation))
    num_overlaps = 0
    files = zip(SELECTION_FILES.files(num_shards), HIT_FILES.files(num_shards), strict=True)
    with (directory / REPORT_FILE).open("wb") as report:
        for file, own in files:
            found = overlaps(load_hits(hits / own), counts, settings.max_documents)
            for overlap in tally.overlaps(index, found, load_selection(directory / file)):
                report.write(orjson.dumps(overlap, option=orjson.OPT_APPEND_NEWLINE))
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
        int(np.diff(each.spans.values, axis=1).sum())
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
    for first, table in read_row_groups(documents, ["text"]):
        own = hits.where((hits.rows >= first) & (hits.rows < first + table.num_rows))
        for row in np.unique(own.rows).tolist():
            spans = before.spans[int(np.searchsorted(before.rows, row))]
            edited = EditedText(table["text"][row - first].as_py(), spans)
            mine = own.rows == row
            starts, ends = edited.from_document(own.starts[mine], own.ends[mine])
            wide = widen(edited.text, starts, ends, settings.window_characters)
            cuts, num_pieces = cut_short_pieces(len(edited.text), wide, settings.min_piece_characters)
            left = len(edited.text) - sum(end - start for start, end in cuts)
            if num_pieces <= settings.max_pieces and left >= max(1, min_characters):
                yield row, edited.spans_without(cuts)


def _without(before: Selection, hit_rows: np.ndarray, cut: dict[int, np.ndarray]) -> Selection:
    """The selection without the rows that were hit, except for those that were cut, which get their new spans."""
    rows = [*cut]
    kept = before.take(np.flatnonzero(~np.isin(before.rows, hit_rows) | np.isin(before.rows, rows)))
    if not cut:
        return kept
    spans = kept.spans.replaced(np.searchsorted(kept.rows, rows), Ragged.of([*cut.values()]))
    return replace(kept, spans=spans)


# -- the steps that lead to it -------------------------------------------------------------------------------


def _index_texts(job: Workspace, texts: EvaluationTexts, digest: str) -> Manifest:
    """Make the n-grams of the evaluation texts, whose hash is `digest`."""
    settings = job.config.decontaminate.located()
    config = {
        "version": STEPS_VERSION,
        "evaluation_texts": digest,
        "ngram": settings.ngram,
        "min_words": settings.shortest,
    }

    def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
        return {"ngrams": run_in_task(build_index, directory, settings)}

    return job.build(
        EVALUATION,
        [TEXTS_FILE],
        lambda _: partial(write_texts, texts, settings),
        config=config,
        inputs=[],
        finish=finish,
    )


def _find_hits(job: Workspace, selection: Manifest, evaluation: Manifest) -> Manifest:
    """Make the hits of every document shard, and the number of documents that hold each n-gram."""
    index = job.directory(EVALUATION)

    def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
        shards = (load_hits(directory / file) for file in HIT_FILES.files(len(job.shards)))
        counts = count_documents(num_ngrams(index), shards)
        save_array(directory / _COUNTS_FILE, counts)
        return {}

    def make(shard: int) -> WriteShard:
        return partial(
            find_hits,
            documents=job.documents_path(shard),
            selection=job.selection_path(selection, shard),
            index=index,
            index_fingerprint=evaluation.fingerprint,
            min_words=job.config.decontaminate.shortest,
        )

    return job.build(
        HITS,
        HIT_FILES,
        make,
        config={"version": STEPS_VERSION},
        inputs=[job.documents, selection, evaluation],
        finish=finish,
    )


def identify(texts: Iterable[EvaluationText]) -> tuple[str, list[InputEntry]]:
    """A digest of all evaluation texts with their names, and the files that they were read from."""
    digest = xxhash.xxh3_128()
    files: dict[Path, None] = {}
    for text in texts:
        for part in (text.task, text.example, text.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        if text.file is not None:
            files[text.file] = None
    entries = [
        InputEntry(kind="evaluation-file", uri=str(file), fingerprint=hash_file(file)[0]) for file in files
    ]
    return digest.hexdigest(), entries


def write_texts(read: EvaluationTexts, settings: DecontaminationConfig, path: Path) -> ShardResult:
    """Write the evaluation texts; `searched` says whether a text has enough words to be searched for."""
    texts = list(read(settings))
    words = split_words([text.text for text in texts]).counts
    searched = words >= settings.shortest
    columns = [[getattr(text, name) for text in texts] for name in ("task", "example", "text")]
    table = pa.table([*columns, words, searched], names=_SCHEMA.names).cast(_SCHEMA)
    pq.write_table(table, str(path), compression="zstd", write_statistics=False)
    num_searched = int(searched.sum())
    stats = {"texts_searched": num_searched, "texts_too_short": len(texts) - num_searched}
    return ShardResult(rows=len(texts), stats=stats)


def read_texts(directory: Path) -> pa.Table:
    """The result of `write_texts`, without the texts themselves."""
    return pq.read_table(str(directory / TEXTS_FILE), columns=["task", "example", "searched"])


def build_index(directory: Path, settings: DecontaminationConfig) -> int:
    """Index the texts in `directory` and write the index beside them; returns the number of different n-grams."""
    texts = pq.read_table(str(directory / TEXTS_FILE), columns=["text"])["text"].to_pylist()
    index = NgramIndex.build(texts, settings.ngram, settings.shortest)
    index.save(directory)
    return len(index.ngrams)
