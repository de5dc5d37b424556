"""The steps of deduplication: hashes, buckets, edges, stars; each an artefact of its own.

Every step is made, continued, repaired or confirmed like the stages themselves. The number of its partitions follows
from the number of records before it, never from the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import Manifest
from cluster.shards import ShardResult, WriteShard
from data_prep.dedup import near, paragraphs, repeats
from data_prep.dedup.config import NearDedup, ParagraphDedup
from data_prep.dedup.graph import ROUND, link_documents, list_leaves, pair_documents
from data_prep.dedup.records import count_partitions, document_ranges
from data_prep.dedup.texts import Survivors
from data_prep.layout import RECORD_FILES, SELECTION_FILES
from data_prep.workspace import Workspace, library_versions

VERSION = 3
"""Raised when the code changes what a step makes, so that older work does not count as current."""
ID_HASHES, ID_REPEATS = "id-hashes", "id-repeats"
DOCUMENT_HASHES, DOCUMENT_REPEATS = "document-hashes", "document-repeats"
PARAGRAPH_HASHES, PARAGRAPH_REPEATS = "paragraph-hashes", "paragraph-repeats"
PARAGRAPHS_REMOVED = "paragraphs-removed"
NEAR_BUCKETS, NEAR_PAIRS, NEAR_SHINGLES = "near-buckets", "near-pairs", "near-shingles"
NEAR_EDGES, NEAR_ROUND, NEAR_REPEATS = "near-edges", "near-round", "near-repeats"

RangeShard = Callable[[Path, int, int, Path], ShardResult]
"""Works on a range of the records in a directory: a partition and how many there are, or two numbers of documents."""


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Makes the steps of one deduplication."""

    job: Workspace
    documents: Manifest

    def distinct(self, shard: int) -> Survivors:
        """A document shard without the documents that are equal to earlier ones."""
        repeats = (self.job.directory(DOCUMENT_REPEATS),) if self.job.config.dedup.documents else ()
        return Survivors(self.job.documents_path(self.documents, shard), shard, repeats)

    def unlike(self, shard: int) -> Survivors:
        """A document shard without equal documents and near-duplicates of earlier ones."""
        own = self.distinct(shard)
        near = (self.job.directory(NEAR_REPEATS),) if self.job.config.dedup.near is not None else ()
        return replace(own, repeats=own.repeats + near)

    def survivors(self, shard: int) -> Survivors:
        """A document shard after all methods."""
        if self.job.config.dedup.paragraphs is None:
            return self.unlike(shard)
        selection = self.job.directory(PARAGRAPHS_REMOVED) / SELECTION_FILES.file(shard, self.job.num_shards)
        return replace(self.unlike(shard), selection=selection)

    def make(self) -> None:
        """Make all steps that the settings ask for.

        Near-duplicates are found before paragraphs are removed: of an edited copy, only the edited paragraphs would be
        left, which resemble nothing.
        """
        method, before = self.job.config.dedup, self.documents
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
            return partial(repeats.hash_values, column, self.job.documents_path(self.documents, shard), shard)

        find = partial(repeats.find_repeats, keys=repeats.KEYS, columns=repeats.REPEATS)
        return self._by_key(repeated, find, self._by_shard(hashed, make, [before]))

    def _find_near(self, before: Manifest, method: NearDedup) -> Manifest:
        def make(shard: int) -> WriteShard:
            return partial(near.write_buckets, self.distinct(shard), method)

        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}
        settings = words | {"shape": list(method.shape), "seed": method.seed}
        buckets = self._by_shard(NEAR_BUCKETS, make, [before], settings)
        graph = self._link(buckets, method)
        ranges = document_ranges([entry.rows or 0 for entry in self.documents.files])
        for number in count():
            num_changed = 0
            for name, operation in ROUND:
                graph = self._by_document(f"{NEAR_ROUND}-{number:02d}-{name}", operation, graph, ranges)
                num_changed += graph.stats["changed"]
            if not num_changed:
                break
        return self._by_document(NEAR_REPEATS, list_leaves, graph, ranges)

    def _link(self, buckets: Manifest, method: NearDedup) -> Manifest:
        """The edges between documents that share a bucket and, if that is verified, are similar enough."""
        if not method.verify:
            return self._by_key(NEAR_EDGES, link_documents, buckets)
        pairs = self._by_key(NEAR_PAIRS, pair_documents, buckets)
        directory, num_shards = self.job.directory(NEAR_PAIRS), self.job.num_shards

        def shingle(shard: int) -> WriteShard:
            return partial(near.write_shingles, survivors=self.distinct(shard), pairs=directory, **words)

        def compare(shard: int) -> WriteShard:
            shingled = self.job.directory(NEAR_SHINGLES)
            places = {"pairs": directory, "shingles": shingled, "shard": shard, "num_shards": num_shards}
            return partial(near.link_similar, **places, **limits)

        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}
        limits = {"threshold": method.threshold}
        shingles = self._by_shard(NEAR_SHINGLES, shingle, [pairs], words)
        return self._by_shard(NEAR_EDGES, compare, [pairs, shingles], limits)

    def _remove_paragraphs(self, before: Manifest, method: ParagraphDedup) -> None:
        within = method.scope == "within"
        function = paragraphs.find_repeats_within if within else paragraphs.hash_paragraphs

        def find(shard: int) -> WriteShard:
            return partial(function, survivors=self.unlike(shard), **settings)

        def remove(shard: int) -> WriteShard:
            found = self.job.directory(PARAGRAPH_REPEATS)
            return partial(paragraphs.remove_repeats, survivors=self.unlike(shard), repeats=found, **limits)

        settings = {"min_length": method.min_length, "fold_digits": method.fold_digits}
        limits = {"max_removed": method.max_removed, "min_characters": self.job.config.min_characters}
        repeated = self._by_shard(PARAGRAPH_REPEATS if within else PARAGRAPH_HASHES, find, [before], settings)
        if not within:
            find_repeats = partial(repeats.find_repeats, keys=paragraphs.KEYS, columns=paragraphs.REPEATS)
            repeated = self._by_key(PARAGRAPH_REPEATS, find_repeats, repeated)
        files = SELECTION_FILES.files(self.job.num_shards)
        self._by_shard(PARAGRAPHS_REMOVED, remove, [before, repeated], limits, files)

    def _by_shard(
        self,
        name: str,
        make: Callable[[int], WriteShard],
        inputs: Sequence[Manifest],
        settings: Mapping[str, Any] | None = None,
        files: Sequence[str] | None = None,
    ) -> Manifest:
        """Make a step with one shard per document shard."""
        files = files or RECORD_FILES.files(self.job.num_shards)
        sizes = [entry.size_bytes for entry in self.documents.files]
        return self._make(name, make, files, inputs, settings or {}, sizes)

    def _by_key(self, name: str, function: RangeShard, records: Manifest) -> Manifest:
        """Make a step with one shard per range of keys of the records of another step."""
        total = count_partitions(records.stats["rows"])

        def make(number: int) -> WriteShard:
            return partial(function, self.job.directory(records.kind), number, total)

        return self._make(name, make, RECORD_FILES.files(total), [records], {})

    def _by_document(
        self, name: str, function: RangeShard, graph: Manifest, ranges: Sequence[tuple[int, int]]
    ) -> Manifest:
        """Make a step with one shard per range of documents of a graph."""

        def make(number: int) -> WriteShard:
            return partial(function, self.job.directory(graph.kind), *ranges[number])

        settings = {"ranges": [list(own) for own in ranges]}
        return self._make(name, make, RECORD_FILES.files(len(ranges)), [graph], settings)

    def _make(
        self,
        name: str,
        make: Callable[[int], WriteShard],
        files: Sequence[str],
        inputs: Sequence[Manifest],
        settings: Mapping[str, Any],
        sizes: Sequence[int] | None = None,
    ) -> Manifest:
        """Make the artefact of a step; arguments as in `Workspace.build`, and the settings that it depends on."""
        config = {"version": VERSION, **settings}
        fingerprints = [each.fingerprint for each in inputs]
        return self.job.build(
            name,
            files,
            make,
            lambda number: [name, config, fingerprints, number, len(files)],
            sizes,
            config=config,
            inputs=[self.job.entry(each) for each in inputs],
            made_with=library_versions(),
        )
