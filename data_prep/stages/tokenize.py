"""Selected documents to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard
from data_prep.layout import TOKENIZER, TOKENIZER_FILE, TOKENS
from data_prep.token_writer import token_dtype, token_files, write_sidecars
from data_prep.tokenize_shard import TokensSplit, tokenize_documents
from data_prep.tokenizers.special import tokenizer_facts
from data_prep.workspace import Workspace, library_versions

VERSION = 4
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


def tokenize(job: Workspace, documents: Manifest, selection: Manifest, tokenizer: Manifest) -> Manifest:
    """Make the `tokens` artefact: one Arrow shard per document shard."""
    tokenizer_path = job.out / TOKENIZER / TOKENIZER_FILE
    facts = tokenizer_facts(tokenizer_path)
    dtype = token_dtype(facts["vocab_size"])
    files = token_files(job.num_shards)
    settings = {"sentences": job.config.sentences, "dtype": dtype.name}

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        write_sidecars(directory, files, dtype, tokenizer_path.read_bytes())
        return {"sources": job.by_source(records)}

    def split(shard: int) -> TokensSplit:
        return TokensSplit(
            documents=job.documents_path(documents, shard),
            selection=job.selection_path(selection, shard),
            tokenizer=tokenizer_path,
            source=job.source_of(shard).name,
            **settings,
        )

    hashes = zip(documents.files, job.selection_hashes(selection), strict=True)
    shards = []
    for shard, (file, (entry, selection_hash)) in enumerate(zip(files, hashes, strict=True)):
        content = [entry.xxh3_128, selection_hash, tokenizer.files[0].xxh3_128, job.source_of(shard).name]
        identity = hash_json([VERSION, content, settings])
        shards.append(Shard(file, Deferred(split, (shard,)), identity, entry.size_bytes))
    return build_sharded_artefact(
        job.out / TOKENS,
        TOKENS,
        function=tokenize_documents,
        shards=shards,
        config={"version": VERSION, **facts, **settings},
        inputs=[job.entry(documents), job.entry(selection), job.entry(tokenizer)],
        finish=finish,
        replace=job.replace,
        made_with=library_versions(),
    )
