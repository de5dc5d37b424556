"""Selected documents to a trained tokenizer, or a tokenizer that exists into its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_file
from cluster.artefacts.shard_records import ShardRecord
from cluster.copies import place_of_file
from cluster.runtime import node_cpus
from cluster.shards import ShardResult, WriteShard
from data_prep.layout import DOCUMENTS, SAMPLE_FILES, SELECTION_FILES, TOKENIZER, TOKENIZER_FILE, WORK
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers.config import PretrainedTokenizer, TrainedTokenizer
from data_prep.tokenizers.pretrained import convert_tokenizer, find_tokenizer
from data_prep.tokenizers.sampling import add_histograms, plan_draws, write_histogram
from data_prep.tokenizers.special import tokenizer_facts
from data_prep.tokenizers.training import train_tokenizer
from data_prep.workspace import Workspace

VERSION = 4
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
SAMPLE = "tokenizer-sample"
"""The work artefact that training documents are drawn with, and its directory."""


def make_tokenizer(job: Workspace, documents: Manifest, selection: Manifest) -> Manifest:
    """Make the `tokenizer` artefact.

    Raises:
        MissingInputError: the tokenizer that is asked for does not exist.
        ConfigError: it cannot be used.
    """
    wanted = job.config.tokenizer
    make_sample: Callable[[], object] | None = None
    if isinstance(wanted, PretrainedTokenizer):
        published = find_tokenizer(wanted.path)

        def make(_: int) -> WriteShard:
            return partial(convert_tokenizer, published, wanted.lowercase)

        inputs = [
            InputEntry(kind="source-file", uri=place_of_file(file), fingerprint=hash_file(file)[0])
            for file in published.files
        ]
        settings = {"kind": wanted.kind, "format": published.format, "lowercase": wanted.lowercase}
    else:
        make_sample = partial(_make_sample, job, documents, selection)

        def make(_: int) -> WriteShard:
            return partial(
                draw_and_train,
                out=job.out,
                documents=[entry.path for entry in documents.files],
                selection=selection.kind,
                sources=[job.source_of(shard).name for shard in range(job.num_shards)],
                source_names=[source.name for source in job.config.sources],
                wanted=wanted,
                # Only Ray knows the processors of a node, and none is needed to confirm a finished tokenizer.
                num_threads=node_cpus(),
            )

        inputs = [job.entry(documents), job.entry(selection)]
        settings = wanted.model_dump(mode="json")

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        write_tokenizer(directory, (directory / TOKENIZER_FILE).read_bytes())
        return tokenizer_facts(directory / TOKENIZER_FILE)

    settings = {"version": VERSION} | settings
    return job.build(
        TOKENIZER,
        [TOKENIZER_FILE],
        make,
        lambda _: [settings, [entry.fingerprint for entry in inputs]],
        config=settings,
        inputs=inputs,
        finish=finish,
        # Training has threads.
        num_cpus=1.0 if make_sample is None else None,
        before=make_sample,
    )


def draw_and_train(
    path: Path,
    *,
    out: Path,
    documents: Sequence[str],
    selection: str,
    sources: Sequence[str],
    source_names: Sequence[str],
    wanted: TrainedTokenizer,
    num_threads: int,
) -> ShardResult:
    """Add up the histograms, decide how often the documents of each stratum are taken, and train on these.

    Args:
        documents: files of the document shards.
        selection: directory in `out` of the artefact that decided about them.
        sources: name of every shard's source.

    Raises:
        ConfigError: as `plan_draws`.
    """
    num_shards = len(documents)
    files = [out / WORK / SAMPLE / file for file in SAMPLE_FILES.files(num_shards)]
    draws = plan_draws(add_histograms(zip(sources, files, strict=True)), wanted, source_names)
    by_source = {
        name: {lang: draw for (source, lang), draw in draws.items() if source == name}
        for name in source_names
    }
    drawn = [
        (out / DOCUMENTS / file, out / selection / SELECTION_FILES.file(shard, num_shards), by_source[source])
        for shard, (file, source) in enumerate(zip(documents, sources, strict=True))
    ]
    return train_tokenizer(drawn, wanted, num_threads, path)


def _make_sample(job: Workspace, documents: Manifest, selection: Manifest) -> Manifest:
    """Make the histograms that documents are drawn with; they do not depend on the sampling settings."""

    def make(shard: int) -> WriteShard:
        places = job.documents_path(documents, shard), job.selection_path(selection, shard)
        return partial(write_histogram, *places)

    hashes = job.selection_hashes(selection)
    return job.build(
        SAMPLE,
        SAMPLE_FILES.files(job.num_shards),
        make,
        lambda shard: [VERSION, documents.files[shard].xxh3_128, hashes[shard]],
        [entry.size_bytes for entry in documents.files],
        config={"version": VERSION},
        inputs=[job.entry(documents), job.entry(selection)],
    )
