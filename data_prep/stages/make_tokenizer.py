"""Selected documents to a trained tokenizer, or a tokenizer that exists into its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_file, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.copies import place_of_file
from cluster.runtime import node_cpus
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard, ShardResult
from data_prep.layout import DOCUMENTS, TOKENIZER, TOKENIZER_FILE, WORK
from data_prep.selection import selection_file
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers.config import PretrainedTokenizer, TrainedTokenizer
from data_prep.tokenizers.pretrained import ConversionSplit, convert_tokenizer, find_tokenizer
from data_prep.tokenizers.sampling import (
    SampleSplit,
    add_histograms,
    plan_draws,
    sample_files,
    write_histogram,
)
from data_prep.tokenizers.special import tokenizer_facts
from data_prep.tokenizers.training import TrainingShard, TrainingSplit, train_tokenizer
from data_prep.workspace import Workspace

VERSION = 4
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""
SAMPLE = "tokenizer-sample"
"""The work artefact that training documents are drawn with, and its directory."""


def make_tokenizer(job: Workspace, documents: Manifest, selection: Manifest) -> Manifest:
    """Make the `tokenizer` artefact.

    Raises:
        MissingInputError: the tokenizer that is asked for is not there.
        ConfigError: it cannot be used.
    """
    wanted = job.config.tokenizer
    split: Any
    make_sample: Callable[[], object] | None = None
    if isinstance(wanted, PretrainedTokenizer):
        published = find_tokenizer(wanted.path)
        function, split = convert_tokenizer, ConversionSplit(published, wanted.lowercase)
        inputs = [
            InputEntry(kind="source-file", uri=place_of_file(file), fingerprint=hash_file(file)[0])
            for file in published.files
        ]
        settings = {"kind": wanted.kind, "format": published.format, "lowercase": wanted.lowercase}
    else:
        make_sample = partial(_make_sample, job, documents, selection)
        function = draw_and_train
        # Only Ray knows the processors of a node, and none is needed to confirm a finished tokenizer.
        split = Deferred(
            lambda: DrawSplit(
                job.out,
                tuple(entry.path for entry in documents.files),
                selection.kind,
                tuple(job.source_of(shard).name for shard in range(job.num_shards)),
                tuple(source.name for source in job.config.sources),
                wanted,
                node_cpus(),
            )
        )
        inputs = [job.entry(documents), job.entry(selection)]
        settings = wanted.model_dump(mode="json")

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        write_tokenizer(directory, (directory / TOKENIZER_FILE).read_bytes())
        return tokenizer_facts(directory / TOKENIZER_FILE)

    settings = {"version": VERSION} | settings
    identity = hash_json([settings, [entry.fingerprint for entry in inputs]])
    return build_sharded_artefact(
        job.out / TOKENIZER,
        TOKENIZER,
        function=function,
        shards=[Shard(TOKENIZER_FILE, split, identity)],
        config=settings,
        inputs=inputs,
        finish=finish,
        # Training has threads.
        num_cpus=None if function is draw_and_train else 1.0,
        replace=job.replace,
        before=make_sample,
    )


@dataclass(frozen=True, slots=True)
class DrawSplit:
    """The input of training: where the sample is drawn from, shard by shard, and the settings."""

    out: Path
    documents: tuple[str, ...]
    """Files of the document shards."""
    selection: str
    """Directory in `out` of the artefact that decided about them."""
    sources: tuple[str, ...]
    """Source of every shard."""
    source_names: tuple[str, ...]
    wanted: TrainedTokenizer
    num_threads: int


def draw_and_train(split: DrawSplit, path: Path) -> ShardResult:
    """Add up the histograms, decide how often the documents of each stratum are taken, and train on these.

    Raises:
        ConfigError: as `plan_draws`.
    """
    num_shards = len(split.documents)
    files = [split.out / WORK / SAMPLE / file for file in sample_files(num_shards)]
    histograms = add_histograms(zip(split.sources, files, strict=True))
    draws = plan_draws(histograms, split.wanted, split.source_names)
    by_source = {
        name: {lang: draw for (source, lang), draw in draws.items() if source == name}
        for name in split.source_names
    }
    shards = tuple(
        TrainingShard(
            split.out / DOCUMENTS / file,
            split.out / split.selection / selection_file(shard, num_shards),
            by_source[source],
        )
        for shard, (file, source) in enumerate(zip(split.documents, split.sources, strict=True))
    )
    return train_tokenizer(TrainingSplit(shards, split.wanted, split.num_threads), path)


def _make_sample(job: Workspace, documents: Manifest, selection: Manifest) -> Manifest:
    """Make the histograms that documents are drawn with; they do not depend on the sampling settings."""

    def split(shard: int) -> SampleSplit:
        return SampleSplit(job.documents_path(documents, shard), job.selection_path(selection, shard))

    shards = []
    hashes = job.selection_hashes(selection)
    for shard, file in enumerate(sample_files(job.num_shards)):
        entry = documents.files[shard]
        identity = hash_json([VERSION, entry.xxh3_128, hashes[shard]])
        shards.append(Shard(file, Deferred(split, (shard,)), identity, entry.size_bytes))
    return build_sharded_artefact(
        job.out / WORK / SAMPLE,
        SAMPLE,
        function=write_histogram,
        shards=shards,
        config={"version": VERSION},
        inputs=[job.entry(documents), job.entry(selection)],
        finish=lambda directory, records: {},
        replace=True,
    )
