"""Documents to the rows of them that are kept, and to what of their texts is not.

The steps that lead there (hashes, buckets, edges, stars) are artefacts in `work/`, made, continued, repaired or
confirmed like the stages themselves. The number of their partitions follows from the number of records before them,
never from the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.manifest import Manifest
from cluster.artefacts.shard_records import Reject, ShardRecord
from cluster.shards import ShardResult, WriteShard
from data_prep.dedup import near, paragraphs, records
from data_prep.dedup.config import NearDedup, ParagraphDedup
from data_prep.dedup.graph import ROUND, link_documents, list_leaves, pair_documents
from data_prep.dedup.records import count_partitions, document_ranges, read_rows
from data_prep.dedup.texts import Survivors
from data_prep.documents import read_selected
from data_prep.layout import DEDUP, RECORD_FILES, SELECTION_FILES, ShardNames
from data_prep.selection import Selection, write_selection
from data_prep.workspace import Workspace

VERSION = 5
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
STEPS_VERSION = 3
"""Raised when the code changes what a step makes, so that older work does not count as current."""
ID_HASHES, ID_REPEATS = "id-hashes", "id-repeats"
DOCUMENT_HASHES, DOCUMENT_REPEATS = "document-hashes", "document-repeats"
PARAGRAPH_HASHES, PARAGRAPH_REPEATS = "paragraph-hashes", "paragraph-repeats"
PARAGRAPHS_REMOVED = "paragraphs-removed"
NEAR_BUCKETS, NEAR_PAIRS, NEAR_SHINGLES = "near-buckets", "near-pairs", "near-shingles"
NEAR_EDGES, NEAR_ROUND, NEAR_REPEATS = "near-edges", "near-round", "near-repeats"

RangeShard = Callable[[Path, int, int, Path], ShardResult]
"""Works on a range of the records in a directory: a partition and how many there are, or two numbers of documents."""


def deduplicate(job: Workspace) -> Manifest:
    """Make the `dedup` artefact: the selection of every document shard.

    It depends on the documents and the settings alone; the steps that lead to it are made only when one of its
    files has to be, and may be deleted afterwards.

    Raises:
        TooManyRejectsError: ids repeat, and `repeated_ids` rejects more of them than `max_rejects`.
    """
    method = job.config.dedup
    steps = Deduplication(job)
    settings: dict[str, Any] = {
        "version": VERSION,
        "method": method.model_dump(mode="json"),
        "repeated_ids": job.config.repeated_ids,
    }
    if method.paragraphs is not None:
        settings["min_characters"] = job.config.min_characters

    def finish(_: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        sources = {
            name: {key: own.get(key, 0) for key in COUNTS} for name, own in job.by_source(records).items()
        }
        near = {"near": method.near.describe()} if method.near is not None else {}
        return {"sources": sources, **near}

    def make(shard: int) -> WriteShard:
        return partial(
            decide,
            survivors=steps.survivors(shard),
            id_repeats=job.directory(ID_REPEATS),
            reject_repeated_ids=job.config.repeated_ids == "reject",
        )

    return job.build(
        DEDUP,
        SELECTION_FILES,
        make,
        config=settings,
        inputs=[job.documents],
        finish=finish,
        max_rejects=job.config.max_rejects,
        before=steps.make,
    )


COUNTS = ("documents_kept", "duplicates", "paragraph_duplicates", "near_duplicates",
          "removed_paragraphs", "removed_paragraph_bytes", "repeated_ids")  # fmt: skip
"""Documents kept; documents dropped as equal to another, as made of repeated paragraphs, and as nearly equal to
another; paragraphs and UTF-8 bytes that are removed from the documents that are kept; documents
whose id an earlier one has."""


def decide(path: Path, *, survivors: Survivors, id_repeats: Path, reject_repeated_ids: bool) -> ShardResult:
    """Write what deduplication keeps of a document shard.

    Args:
        survivors: the documents and texts that remain in the end.
        id_repeats: directory with the documents whose id an earlier one has.
        reject_repeated_ids: leave these out, as rejects, instead of telling them apart by their places.
    """
    shard, left = survivors.shard, survivors.load()
    num_equal, num_near = (len(read_rows(own, shard)) for own in (survivors.equal, survivors.near))
    repeated = np.intersect1d(read_rows(id_repeats, shard), left.rows)
    kept = replace(left, repeated_ids=repeated)
    rejects: tuple[Reject, ...] = ()
    if reject_repeated_ids and len(repeated):
        rows = read_selected(
            survivors.documents, ("doc_id", "uri", "meta", "source"), Selection.whole(repeated)
        )
        rejects = tuple(
            Reject(
                row["uri"],
                int(orjson.loads(row["meta"]).get("byte_start", 0)),
                f"an earlier document has the id {row['doc_id']}",
                row["source"],
            )
            for table in rows
            for row in table.to_pylist()
        )
        kept = left.take(np.flatnonzero(~np.isin(left.rows, repeated)))
    write_selection(path, kept)
    counts = (
        len(kept),
        num_equal,
        survivors.num_documents() - num_equal - num_near - len(left),
        num_near,
        len(kept.spans.values),
        int(np.diff(kept.spans.values, axis=1).sum()),
        len(repeated),
    )
    return ShardResult(rows=len(kept), stats=dict(zip(COUNTS, counts, strict=True)), rejects=rejects)


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Makes the steps of one deduplication."""

    job: Workspace

    def distinct(self, shard: int) -> Survivors:
        """A document shard without the documents that are equal to earlier ones."""
        equal = self.job.directory(DOCUMENT_REPEATS) if self.job.config.dedup.documents else None
        return Survivors(self.job.documents_path(shard), shard, equal)

    def unlike(self, shard: int) -> Survivors:
        """A document shard without equal documents and near-duplicates of earlier ones."""
        near = self.job.directory(NEAR_REPEATS) if self.job.config.dedup.near is not None else None
        return replace(self.distinct(shard), near=near)

    def survivors(self, shard: int) -> Survivors:
        """A document shard after all methods."""
        if self.job.config.dedup.paragraphs is None:
            return self.unlike(shard)
        selection = self.job.directory(PARAGRAPHS_REMOVED) / SELECTION_FILES.file(shard, len(self.job.shards))
        return replace(self.unlike(shard), selection=selection)

    def make(self) -> None:
        """Make all steps that the settings ask for.

        Near-duplicates are found before paragraphs are removed: of an edited copy, only the edited paragraphs would be
        left, which resemble nothing.
        """
        method, before = self.job.config.dedup, self.job.documents
        self._find(ID_HASHES, "doc_id", ID_REPEATS, before)
        if method.documents:
            before = self._find(DOCUMENT_HASHES, "text", DOCUMENT_REPEATS, before)
        if method.near is not None:
            before = self._find_near(before, method.near)
        if method.paragraphs is not None:
            self._remove_paragraphs(before, method.paragraphs)

    def _find(self, hashed: str, column: str, repeated: str, before: Manifest) -> Manifest:
        """The documents that repeat an earlier one in a column."""

        def make(shard: int) -> WriteShard:
            return partial(records.hash_values, column, self.job.documents_path(shard), shard)

        find = partial(records.find_repeats, keys=records.KEYS, columns=records.REPEATS)
        return self._by_range(repeated, find, self._make(hashed, make, [before]))

    def _find_near(self, before: Manifest, method: NearDedup) -> Manifest:
        def make(shard: int) -> WriteShard:
            return partial(near.write_buckets, self.distinct(shard), method)

        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}
        settings = words | {"shape": list(method.shape), "seed": method.seed}
        buckets = self._make(NEAR_BUCKETS, make, [before], settings)
        graph = self._link(buckets, method)
        ranges = document_ranges([entry.rows or 0 for entry in self.job.documents.files])
        for number in count():
            num_changed = 0
            for name, operation in ROUND:
                graph = self._by_range(f"{NEAR_ROUND}-{number:02d}-{name}", operation, graph, ranges)
                num_changed += graph.stats["changed"]
            if not num_changed:
                break
        return self._by_range(NEAR_REPEATS, list_leaves, graph, ranges)

    def _link(self, buckets: Manifest, method: NearDedup) -> Manifest:
        """The edges between documents that share a bucket and, if that is verified, are similar enough."""
        if not method.verify:
            return self._by_range(NEAR_EDGES, link_documents, buckets)
        pairs = self._by_range(NEAR_PAIRS, pair_documents, buckets)
        directory, num_shards = self.job.directory(NEAR_PAIRS), len(self.job.shards)

        def shingle(shard: int) -> WriteShard:
            return partial(near.write_shingles, survivors=self.distinct(shard), pairs=directory, **words)

        def compare(shard: int) -> WriteShard:
            shingled = self.job.directory(NEAR_SHINGLES)
            places = {"pairs": directory, "shingles": shingled, "shard": shard, "num_shards": num_shards}
            return partial(near.link_similar, **places, **limits)

        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}
        limits = {"threshold": method.threshold}
        shingles = self._make(NEAR_SHINGLES, shingle, [pairs], words)
        return self._make(NEAR_EDGES, compare, [pairs, shingles], limits)

    def _remove_paragraphs(self, before: Manifest, method: ParagraphDedup) -> None:
        within = method.scope == "within"

        def find(shard: int) -> WriteShard:
            own = self.unlike(shard)
            return partial(paragraphs.hash_paragraphs, survivors=own, only_repeats=within, **settings)

        def remove(shard: int) -> WriteShard:
            found = self.job.directory(PARAGRAPH_REPEATS)
            return partial(paragraphs.remove_repeats, survivors=self.unlike(shard), repeats=found, **limits)

        settings = {"min_length": method.min_length, "fold_digits": method.fold_digits}
        limits = {"max_removed": method.max_removed, "min_characters": self.job.config.min_characters}
        repeated = self._make(PARAGRAPH_REPEATS if within else PARAGRAPH_HASHES, find, [before], settings)
        if not within:
            find_repeats = partial(records.find_repeats, keys=paragraphs.KEYS, columns=paragraphs.REPEATS)
            repeated = self._by_range(PARAGRAPH_REPEATS, find_repeats, repeated)
        self._make(PARAGRAPHS_REMOVED, remove, [before, repeated], limits, SELECTION_FILES)

    def _by_range(
        self, name: str, function: RangeShard, before: Manifest, ranges: Sequence[tuple[int, int]] = ()
    ) -> Manifest:
        """Make a step with one shard per range of the records of another step: of their keys, or of documents."""
        total = count_partitions(before.stats["rows"])
        ranges = ranges or [(number, total) for number in range(total)]

        def make(number: int) -> WriteShard:
            return partial(function, self.job.directory(before.kind), *ranges[number])

        settings = {"ranges": [list(own) for own in ranges]}
        return self._make(name, make, [before], settings, RECORD_FILES.files(len(ranges)))

    def _make(
        self,
        name: str,
        make: Callable[[int], WriteShard],
        inputs: Sequence[Manifest],
        settings: Mapping[str, Any] | None = None,
        files: ShardNames | Sequence[str] = RECORD_FILES,
    ) -> Manifest:
        """Make the artefact of a step; arguments as in `Workspace.build`, and the settings that it depends on."""
        config = {"version": STEPS_VERSION, **(settings or {})}
        return self.job.build(name, files, make, config=config, inputs=inputs)
