"""`prepare`: from source files to a token store, as four committed artefacts.

    documents/   one Parquet shard per group of source files
    dedup/       per document shard, the rows that are kept
    tokenizer/   tokenizer.json
    tokens/      one Arrow shard per document shard

Every stage is a `build_sharded_artefact`: what is finished and intact is confirmed, what is missing or
damaged is made, and nothing else is touched. The result depends on source files and configuration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.manifest import InputEntry, Manifest, hash_file, hash_json
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard, ShardRecord, sum_stats
from cluster.storage import exclusive, storage_errors
from data_prep.collect import DocumentsSplit, collect_documents, require_documents
from data_prep.config import ByteLevelBPE, DataConfig
from data_prep.dedup.exact import keep_all, keep_first
from data_prep.dedup.index import IndexSplit, index_documents, index_files, load_index
from data_prep.dedup.kept import kept_files, write_kept
from data_prep.documents import document_files
from data_prep.inputs import Input, group_inputs, hash_inputs, list_inputs
from data_prep.layout import DEDUP, DOCUMENTS, TOKENIZER, TOKENIZER_FILE, TOKENS
from data_prep.sources.base import SourceConfig
from data_prep.token_writer import token_dtype, token_files, write_sidecars
from data_prep.tokenize_shard import TokensSplit, tokenize_documents
from data_prep.tokenizers.byte_level_bpe import TrainingSplit, train_tokenizer
from data_prep.tokenizers.pretrained import CopySplit, copy_tokenizer, find_tokenizer
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size

VERSIONS = {DOCUMENTS: 1, DEDUP: 1, TOKENIZER: 1, TOKENS: 1}
"""Raised when a stage's code changes what it makes, so that older artefacts are not taken for current."""
KEEP = {"exact": keep_first, "none": keep_all}
"""Every deduplication by its name in the configuration."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A finished preparation."""

    out: Path
    documents: Manifest
    dedup: Manifest
    tokenizer: Manifest
    tokens: Manifest

    @property
    def token_store(self) -> Path:
        """Directory to open as a `TokenStore`."""
        return self.out / TOKENS

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the tokens, which covers everything before them."""
        return self.tokens.fingerprint


def prepare(config: DataConfig, *, replace: bool = False) -> Prepared:
    """Make, continue, repair or confirm the artefacts of `config`. Needs a connected Ray cluster.

    Args:
        replace: allow artefacts of other sources or settings in `config.out` to be replaced.

    Raises:
        MissingInputError: a source names files that do not exist.
        EmptyCorpusError: the sources hold no usable document.
        TooManyRejectsError: more than `max_rejects` inputs are unreadable; finished shards are kept.
        ConfigError: `out` holds other data and `replace` is False, or the tokenizer cannot be used.
        StorageError: the file system refused, or another preparation is writing to `out`.
    """
    with _start(config, replace) as job:
        documents = job.collect()
        dedup = job.deduplicate(documents)
        tokenizer = job.make_tokenizer(documents, dedup)
        tokens = job.tokenize(documents, dedup, tokenizer)
    return Prepared(config.out, documents, dedup, tokenizer, tokens)


def prepare_tokenizer(config: DataConfig, *, replace: bool = False) -> Manifest:
    """Like `prepare`, but ends with the tokenizer; a later `prepare` goes on from there."""
    with _start(config, replace) as job:
        documents = job.collect()
        return job.make_tokenizer(documents, job.deduplicate(documents))


@contextmanager
def _start(config: DataConfig, replace: bool) -> Iterator[_Job]:
    """List and hash the source files, and hold the output directory."""
    with storage_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
    inputs = list_inputs(config)
    with exclusive(config.out, "a preparation"):
        digests = dict(zip(inputs, hash_inputs(inputs, config.out), strict=True))
        yield _Job(config, group_inputs(inputs, config.shard_bytes), digests, replace)


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of the stages; each method is one stage."""

    config: DataConfig
    groups: Sequence[tuple[Input, ...]]
    """The source files of every shard."""
    digests: Mapping[Input, str]
    replace: bool

    @property
    def out(self) -> Path:
        return self.config.out

    def collect(self) -> Manifest:
        """Source files to documents."""
        least = self.config.min_characters

        def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
            totals = sum_stats(records)
            num_rejects = sum(len(record.rejects) for record in records)
            require_documents(totals["rows"], totals.get("documents_read", 0), num_rejects, least)
            return {"sources": self._by_source(records)}

        shards = []
        for file, group in zip(document_files(len(self.groups)), self.groups, strict=True):
            source = group[0].source
            split = DocumentsSplit(source, tuple(item.file for item in group), least)
            content = [[item.file.name, self.digests[item]] for item in group]
            identity = hash_json([VERSIONS[DOCUMENTS], _without_paths(source), content, least])
            shards.append(Shard(file, split, identity))
        return build_sharded_artefact(
            self.out / DOCUMENTS,
            DOCUMENTS,
            function=collect_documents,
            shards=shards,
            config={
                "version": VERSIONS[DOCUMENTS],
                "sources": [_without_paths(source) for source in self.config.sources],
                "min_characters": least,
            },
            inputs=[
                InputEntry(kind="source-file", uri=item.file.path, fingerprint=self.digests[item])
                for group in self.groups
                for item in group
            ],
            finish=finish,
            max_rejects=self.config.max_rejects,
            replace=self.replace,
        )

    def deduplicate(self, documents: Manifest) -> Manifest:
        """Documents to kept rows."""
        indexes, results = index_files(len(self.groups)), kept_files(len(self.groups))

        def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
            hashes = [entries["text_hash"] for entries in load_index(directory, indexes)]
            kept = KEEP[self.config.dedup](hashes)
            for file, rows in zip(results, kept, strict=True):
                write_kept(directory / file, rows)
            counts = [
                {"documents_kept": len(rows), "duplicates": len(shard) - len(rows)}
                for rows, shard in zip(kept, hashes, strict=True)
            ]
            totals = {key: sum(count[key] for count in counts) for key in ("documents_kept", "duplicates")}
            return totals | {"sources": self._by_source(records, counts)}

        shards = [
            Shard(
                file,
                IndexSplit(self.out / DOCUMENTS / entry.path),
                hash_json([VERSIONS[DEDUP], entry.xxh3_128]),
            )
            for file, entry in zip(indexes, documents.files, strict=True)
        ]
        return build_sharded_artefact(
            self.out / DEDUP,
            DEDUP,
            function=index_documents,
            shards=shards,
            config={"version": VERSIONS[DEDUP], "method": self.config.dedup},
            inputs=[self._input(documents)],
            finish=finish,
            replace=self.replace,
        )

    def make_tokenizer(self, documents: Manifest, dedup: Manifest) -> Manifest:
        """Kept documents to a trained tokenizer, or a tokenizer that exists into its place."""
        wanted = self.config.tokenizer
        if isinstance(wanted, ByteLevelBPE):
            function, split = train_tokenizer, self._training_split(documents, wanted)
            settings = wanted.model_dump(mode="json")
            inputs = [self._input(documents), self._input(dedup)]
        else:
            path = find_tokenizer(wanted.path)
            function, split, settings = copy_tokenizer, CopySplit(path), {"kind": wanted.kind}
            inputs = [InputEntry(kind="source-file", uri=str(path), fingerprint=hash_file(path)[0])]
        settings = {"version": VERSIONS[TOKENIZER]} | settings
        identity = hash_json([settings, [entry.fingerprint for entry in inputs]])
        return build_sharded_artefact(
            self.out / TOKENIZER,
            TOKENIZER,
            function=function,
            shards=[Shard(TOKENIZER_FILE, split, identity)],
            config=settings,
            inputs=inputs,
            finish=lambda directory, records: _tokenizer_facts(directory / TOKENIZER_FILE),
            replace=self.replace,
        )

    def tokenize(self, documents: Manifest, dedup: Manifest, tokenizer: Manifest) -> Manifest:
        """Kept documents to tokens."""
        tokenizer_path = self.out / TOKENIZER / TOKENIZER_FILE
        facts = _tokenizer_facts(tokenizer_path)
        dtype = token_dtype(facts["vocab_size"])
        files = token_files(len(self.groups))
        kept_hashes = {entry.path: entry.xxh3_128 for entry in dedup.files}
        settings = {"sentences": self.config.sentences, "dtype": dtype.name}

        def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
            write_sidecars(directory, files, dtype, tokenizer_path.read_bytes())
            return {"sources": self._by_source(records)}

        shards = []
        names = zip(files, documents.files, kept_files(len(self.groups)), self.groups, strict=True)
        for file, entry, kept, group in names:
            split = TokensSplit(
                documents=self.out / DOCUMENTS / entry.path,
                kept=self.out / DEDUP / kept,
                tokenizer=tokenizer_path,
                source=group[0].source.name,
                **settings,
            )
            content = [entry.xxh3_128, kept_hashes[kept], tokenizer.files[0].xxh3_128, group[0].source.name]
            shards.append(Shard(file, split, hash_json([VERSIONS[TOKENS], content, settings])))
        return build_sharded_artefact(
            self.out / TOKENS,
            TOKENS,
            function=tokenize_documents,
            shards=shards,
            config={
                "version": VERSIONS[TOKENS],
                **facts,
                **settings,
            },
            inputs=[self._input(documents), self._input(dedup), self._input(tokenizer)],
            finish=finish,
            replace=self.replace,
        )

    def _training_split(self, documents: Manifest, wanted: ByteLevelBPE) -> TrainingSplit:
        from cluster.runtime import cluster_cpus

        return TrainingSplit(
            documents=tuple(self.out / DOCUMENTS / entry.path for entry in documents.files),
            dedup=self.out / DEDUP,
            index_files=tuple(index_files(len(self.groups))),
            kept_files=tuple(kept_files(len(self.groups))),
            vocab_size=wanted.vocab_size,
            train_bytes=wanted.train_bytes,
            min_frequency=wanted.min_frequency,
            num_threads=cluster_cpus(),
        )

    def _input(self, manifest: Manifest) -> InputEntry:
        uri = str(self.out / manifest.kind)
        return InputEntry(kind=manifest.kind, uri=uri, fingerprint=manifest.fingerprint)

    def _by_source(
        self, records: Sequence[ShardRecord], extra: Sequence[Mapping[str, int]] | None = None
    ) -> dict[str, dict[str, int]]:
        """The shards' counts, added up for each source."""
        totals: dict[str, dict[str, int]] = {source.name: {} for source in self.config.sources}
        for number, (group, record) in enumerate(zip(self.groups, records, strict=True)):
            counts = sum_stats([record]) | {"rejects": len(record.rejects)}
            counts |= extra[number] if extra is not None else {}
            own = totals[group[0].source.name]
            for key, count in counts.items():
                own[key] = own.get(key, 0) + count
        return totals


def _without_paths(source: SourceConfig) -> dict[str, Any]:
    """A source's settings; where its files lie is no part of what they hold."""
    return source.model_dump(mode="json", exclude={"paths"})


def _tokenizer_facts(path: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return {"vocab_size": vocabulary_size(tokenizer), "special_tokens": find_special_tokens(tokenizer)}
