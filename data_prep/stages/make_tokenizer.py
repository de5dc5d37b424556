"""Selected documents to a trained tokenizer, or a tokenizer that exists into its place."""

from __future__ import annotations

from typing import Any

from cluster.manifest import InputEntry, Manifest, hash_file, hash_json
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard
from data_prep.dedup.index import index_files
from data_prep.layout import DEDUP, TOKENIZER, TOKENIZER_FILE
from data_prep.tokenizers.byte_level_bpe import TrainingSplit, train_tokenizer
from data_prep.tokenizers.config import ByteLevelBPE
from data_prep.tokenizers.pretrained import CopySplit, copy_tokenizer, find_tokenizer
from data_prep.tokenizers.special import tokenizer_facts
from data_prep.workspace import Workspace

VERSION = 1
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


def make_tokenizer(job: Workspace, documents: Manifest, selection: Manifest) -> Manifest:
    """Make the `tokenizer` artefact.

    Raises:
        MissingInputError: the tokenizer that is asked for is not there.
        ConfigError: it cannot be used.
    """
    wanted = job.config.tokenizer
    split: Any
    if isinstance(wanted, ByteLevelBPE):
        function, split = train_tokenizer, _training_split(job, documents, selection, wanted)
        settings = wanted.model_dump(mode="json")
        inputs = [job.entry(documents), job.entry(selection)]
    else:
        path = find_tokenizer(wanted.path)
        function, split, settings = copy_tokenizer, CopySplit(path), {"kind": wanted.kind}
        inputs = [InputEntry(kind="source-file", uri=str(path), fingerprint=hash_file(path)[0])]
    settings = {"version": VERSION} | settings
    identity = hash_json([settings, [entry.fingerprint for entry in inputs]])
    return build_sharded_artefact(
        job.out / TOKENIZER,
        TOKENIZER,
        function=function,
        shards=[Shard(TOKENIZER_FILE, split, identity)],
        config=settings,
        inputs=inputs,
        finish=lambda directory, records: tokenizer_facts(directory / TOKENIZER_FILE),
        replace=job.replace,
    )


def _training_split(
    job: Workspace, documents: Manifest, selection: Manifest, wanted: ByteLevelBPE
) -> TrainingSplit:
    from cluster.runtime import cluster_cpus

    return TrainingSplit(
        documents=tuple(job.documents_path(documents, shard) for shard in range(job.num_shards)),
        selections=tuple(job.selection_path(selection, shard) for shard in range(job.num_shards)),
        indexes=tuple(job.out / DEDUP / file for file in index_files(job.num_shards)),
        vocab_size=wanted.vocab_size,
        train_bytes=wanted.train_bytes,
        min_frequency=wanted.min_frequency,
        num_threads=cluster_cpus(),
    )
