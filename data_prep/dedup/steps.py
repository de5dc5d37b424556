"""The steps of deduplication: hashes, buckets, edges, stars; each an artefact of its own.

Every step is made, continued, repaired or confirmed like the stages themselves. The number of its partitions follows
from the number of records before it, never from the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_json
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard, ShardFunction
from data_prep.dedup import near, paragraphs, repeats
from data_prep.dedup.config import NearDedup, ParagraphDedup
from data_prep.dedup.graph import EDGES, ROUND, StarSplit, link_documents, list_leaves, pair_documents
from data_prep.dedup.records import count_partitions, document_ranges, record_files
from data_prep.dedup.texts import Survivors
from data_prep.layout import WORK
from data_prep.selection import selection_file, selection_files
from data_prep.workspace import Workspace, library_versions

VERSION = 3
"""Raised when the code changes what a step makes, so that older work is not taken for current."""
ID_HASHES, ID_REPEATS = "id-hashes", "id-repeats"
DOCUMENT_HASHES, DOCUMENT_REPEATS = "document-hashes", "document-repeats"
PARAGRAPH_HASHES, PARAGRAPH_REPEATS = "paragraph-hashes", "paragraph-repeats"
PARAGRAPHS_REMOVED = "paragraphs-removed"
NEAR_BUCKETS, NEAR_PAIRS, NEAR_SHINGLES = "near-buckets", "near-pairs", "near-shingles"
NEAR_EDGES, NEAR_ROUND, NEAR_REPEATS = "near-edges", "near-round", "near-repeats"


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Makes the steps of one deduplication."""

    job: Workspace
    documents: Manifest

    def directory(self, name: str) -> Path:
        """Path of the artefact of a step."""
        return self.job.out / WORK / name

    def distinct(self, shard: int) -> Survivors:
        """A document shard without the documents that are equal to earlier ones."""
        repeats = (self.directory(DOCUMENT_REPEATS),) if self.job.config.dedup.documents else ()
        return Survivors(self.job.documents_path(self.documents, shard), shard, repeats)

    def unlike(self, shard: int) -> Survivors:
        """A document shard without equal documents and near-duplicates of earlier ones."""
        own = self.distinct(shard)
        near = (self.directory(NEAR_REPEATS),) if self.job.config.dedup.near is not None else ()
        return replace(own, repeats=own.repeats + near)

    def survivors(self, shard: int) -> Survivors:
        """A document shard after all methods."""
        if self.job.config.dedup.paragraphs is None:
            return self.unlike(shard)
        selection = self.directory(PARAGRAPHS_REMOVED) / selection_file(shard, self.job.num_shards)
        return replace(self.unlike(shard), selection=selection)

    def make(self) -> None:
        """Make all steps that the settings ask for.

        Near-duplicates are found before paragraphs are removed: of an edited copy, only the edited paragraphs would be
        left, which resemble nothing.
        """
        method, before = self.job.config.dedup, self.documents
        self._find(ID_HASHES, repeats.hash_ids, ID_REPEATS, before)
        if method.documents:
            before = self._find(DOCUMENT_HASHES, repeats.hash_documents, DOCUMENT_REPEATS, before)
        if method.near is not None:
            before = self._find_near(before, method.near)
        if method.paragraphs is not None:
            self._remove_paragraphs(before, method.paragraphs)

    def _find(self, hashed: str, function: ShardFunction, repeated: str, before: Manifest) -> Manifest:
        """The documents that repeat an earlier one in the key that `function` hashes."""

        def whole(shard: int) -> Survivors:
            return Survivors(self.job.documents_path(self.documents, shard), shard)

        hashes = self._by_shard(hashed, function, whole, [before])
        return self._by_key(repeated, repeats.find_repeats, hashes, repeats.KEYS, repeats.REPEATS)

    def _find_near(self, before: Manifest, method: NearDedup) -> Manifest:
        def split(shard: int) -> near.BucketsSplit:
            return near.BucketsSplit(self.distinct(shard), method)

        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}
        settings = words | {"shape": list(method.shape), "seed": method.seed}
        buckets = self._by_shard(NEAR_BUCKETS, near.write_buckets, split, [before], settings)
        if method.verify:
            graph = self._verify(buckets, method)
        else:
            graph = self._by_key(NEAR_EDGES, link_documents, buckets, near.KEYS, EDGES)
        ranges = document_ranges([entry.rows or 0 for entry in self.documents.files])
        for number in count():
            num_changed = 0
            for name, operation in ROUND:
                graph = self._by_document(f"{NEAR_ROUND}-{number:02d}-{name}", operation, graph, ranges)
                num_changed += graph.stats["changed"]
            if not num_changed:
                break
        return self._by_document(NEAR_REPEATS, list_leaves, graph, ranges)

    def _verify(self, buckets: Manifest, method: NearDedup) -> Manifest:
        """The edges between documents whose shingles are similar enough, of those that share a bucket."""
        pairs = self._by_key(NEAR_PAIRS, pair_documents, buckets, near.KEYS, EDGES)
        directory, num_shards = self.directory(NEAR_PAIRS), self.job.num_shards
        words = {"ngram": method.ngram, "fold_digits": method.fold_digits}

        def shingled(shard: int) -> near.ShinglesSplit:
            return near.ShinglesSplit(self.distinct(shard), directory, **words)

        def compared(shard: int) -> near.PairsSplit:
            return near.PairsSplit(
                directory, self.directory(NEAR_SHINGLES), shard, num_shards, method.threshold
            )

        shingles = self._by_shard(NEAR_SHINGLES, near.write_shingles, shingled, [pairs], words)
        limits, inputs = {"threshold": method.threshold}, [pairs, shingles]
        return self._by_shard(NEAR_EDGES, near.link_similar, compared, inputs, limits)

    def _remove_paragraphs(self, before: Manifest, method: ParagraphDedup) -> None:
        def split(shard: int) -> paragraphs.ParagraphsSplit:
            return paragraphs.ParagraphsSplit(self.unlike(shard), **settings)

        def removal(shard: int) -> paragraphs.RemovalSplit:
            return paragraphs.RemovalSplit(self.unlike(shard), self.directory(PARAGRAPH_REPEATS), **limits)

        settings = {"min_length": method.min_length, "fold_digits": method.fold_digits}
        limits = {"max_removed": method.max_removed, "min_characters": self.job.config.min_characters}
        if method.scope == "within":
            function = paragraphs.find_repeats_within
            repeated = self._by_shard(PARAGRAPH_REPEATS, function, split, [before], settings)
        else:
            function, columns = paragraphs.hash_paragraphs, paragraphs.REPEATS
            hashes = self._by_shard(PARAGRAPH_HASHES, function, split, [before], settings)
            repeated = self._by_key(PARAGRAPH_REPEATS, repeats.find_repeats, hashes, paragraphs.KEYS, columns)
        files = selection_files(self.job.num_shards)
        function, inputs = paragraphs.remove_repeats, [before, repeated]
        self._by_shard(PARAGRAPHS_REMOVED, function, removal, inputs, limits, files)

    def _by_shard(
        self,
        name: str,
        function: ShardFunction,
        split: Callable[[int], Any],
        inputs: Sequence[Manifest],
        settings: Mapping[str, Any] | None = None,
        files: Sequence[str] | None = None,
    ) -> Manifest:
        """Make a step with one shard per document shard."""
        files = files or record_files(self.job.num_shards)
        sizes = [entry.size_bytes for entry in self.documents.files]
        return self._make(name, function, split, files, inputs, settings or {}, sizes)

    def _by_key(
        self,
        name: str,
        function: ShardFunction,
        records: Manifest,
        keys: tuple[str, ...],
        columns: Mapping[str, str],
    ) -> Manifest:
        """Make a step with one shard per range of keys of the records of another step."""
        total = count_partitions(records.stats["rows"])

        def split(number: int) -> repeats.RepeatsSplit:
            directory = self.directory(records.kind)
            return repeats.RepeatsSplit(directory, number, total, keys, tuple(columns.items()))

        return self._make(name, function, split, record_files(total), [records], {})

    def _by_document(
        self, name: str, operation: ShardFunction, graph: Manifest, ranges: Sequence[tuple[int, int]]
    ) -> Manifest:
        """Make a step with one shard per range of documents of a graph."""

        def split(number: int) -> StarSplit:
            return StarSplit(self.directory(graph.kind), *ranges[number])

        settings = {"ranges": [list(own) for own in ranges]}
        return self._make(name, operation, split, record_files(len(ranges)), [graph], settings)

    def _make(
        self,
        name: str,
        function: ShardFunction,
        split: Callable[[int], Any],
        files: Sequence[str],
        inputs: Sequence[Manifest],
        settings: Mapping[str, Any],
        sizes: Sequence[int] | None = None,
    ) -> Manifest:
        """Make the artefact of a step. An artefact of other settings in its place is replaced.

        Args:
            name: kind of the artefact, and its directory below `work/`.
            split: makes the split of a shard when its task starts: there may be very many.
            files: names of the shards.
            settings: the settings that its contents depend on.
            sizes: bytes that each split reads, for the order of the tasks; None if not known.
        """

        def entry(manifest: Manifest) -> InputEntry:
            is_step = manifest.kind != self.documents.kind
            uri = self.directory(manifest.kind) if is_step else self.job.out / manifest.kind
            return InputEntry(kind=manifest.kind, uri=str(uri), fingerprint=manifest.fingerprint)

        config, count = {"version": VERSION, **settings}, len(files)
        fingerprints = [each.fingerprint for each in inputs]
        shards = [
            Shard(
                file,
                Deferred(split, (number,)),
                hash_json([name, config, fingerprints, number, count]),
                size,
            )
            for number, (file, size) in enumerate(zip(files, sizes or [0] * count, strict=True))
        ]
        return build_sharded_artefact(
            self.directory(name),
            name,
            function=function,
            shards=shards,
            config=config,
            inputs=[entry(each) for each in inputs],
            finish=lambda directory, records: {},
            replace=True,
            made_with=library_versions(),
        )
