"""Documents of a preparation without its sources, and its deduplication without Ray."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster import shards
from cluster.artefacts.manifest import FileEntry, Manifest, hash_file, read_manifest
from cluster.artefacts.storage import commit, staging_directory
from data_prep.config import PreparationConfig
from data_prep.document import Document
from data_prep.documents import DocumentStore, DocumentWriter
from data_prep.inputs import ShardInput
from data_prep.layout import DEDUP, DOCUMENT_FILES, DOCUMENTS
from data_prep.stages import decontaminate
from data_prep.stages.deduplicate import deduplicate
from data_prep.workspace import Workspace

MIN_CHARACTERS = 5
NEAR = {"documents": False, "near": {"threshold": 0.6, "ngram": 2, "verify": False}}
VERIFIED = {"documents": False, "near": {"threshold": 0.85, "ngram": 2, "bands": 38, "rows": 5}}
FULL = NEAR | {"documents": True, "paragraphs": {"scope": "corpus", "min_length": 20}}


def write_documents(out: Path, texts: Sequence[Sequence[str]]) -> Manifest:
    """Commit documents, one shard for each list of texts."""
    staging = staging_directory(out / "documents", "test")
    staging.mkdir(parents=True)
    entries = []
    for file, own in zip(DOCUMENT_FILES.files(len(texts)), texts, strict=True):
        with DocumentWriter(staging / file) as writer:
            for number, text in enumerate(own):
                writer.add(Document(f"{file}:{number}", "web", "u", "t", "en", text))
        digest, size_bytes = hash_file(staging / file)
        entries.append(FileEntry(path=file, size_bytes=size_bytes, xxh3_128=digest, rows=len(own)))
    return commit(staging, out / "documents", "documents", config={}, files=entries)


def workspace(out: Path, num_shards: int, dedup: Any, **settings: Any) -> Workspace:
    """A preparation with one source, whose documents are already there."""
    config = PreparationConfig.model_validate(
        {
            "name": "test",
            "out": out,
            "sources": [{"kind": "books_text", "name": "web", "paths": ["*"]}],
            "min_characters": MIN_CHARACTERS,
            "dedup": dedup,
            **settings,
        }
    )
    (source,) = config.sources
    job = Workspace(config, [ShardInput(source, [], 1) for _ in range(num_shards)], replace=True)
    job.documents = read_manifest(out / DOCUMENTS)
    return job


@contextmanager
def without_ray() -> Iterator[None]:
    """Shard functions run one after the other in this process; all else is as ever, but for waiting for the disk."""

    def run(function: Any, tasks: Any, arguments: Any, who: Any, *, num_cpus: float) -> Iterator[Any]:
        for task in tasks:
            yield task, function(*arguments(task))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "run_tasks", run)
        for count in ("tasks_in_flight", "node_cpus"):
            patch.setattr(shards, count, lambda: 1)
        patch.setattr(decontaminate, "run_in_task", lambda function, *arguments: function(*arguments))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def dedup(out: Path, texts: Sequence[Sequence[str]], settings: Any) -> Manifest:
    """Deduplicate texts in shards; the manifest of the result."""
    shutil.rmtree(out, ignore_errors=True)
    write_documents(out, texts)
    with without_ray():
        return deduplicate(workspace(out, len(texts), settings))


def kept_texts(out: Path, num_shards: int) -> list[list[str]]:
    """Per shard the texts that deduplication kept, without what it removed from them."""
    store = DocumentStore(out / DOCUMENTS, out / DEDUP)
    return [[document.text for document in store.read(shard)] for shard in range(num_shards)]


def kept_documents(out: Path, num_shards: int) -> list[int]:
    """Positions in the corpus of the documents that deduplication kept."""
    store = DocumentStore(out / DOCUMENTS, out / DEDUP)
    counts = [entry.rows or 0 for entry in read_manifest(out / DOCUMENTS).files]
    starts = np.cumsum([0, *counts])
    return [int(starts[shard] + row) for shard in range(num_shards) for row in store.selection(shard).rows]


def firsts_of_components(linked: np.ndarray) -> list[int]:
    """The first node of every component of a graph, from [nodes, nodes] bool, by scipy."""
    labels = connected_components(coo_array(linked), directed=False)[1]
    return sorted(np.unique(labels, return_index=True)[1].tolist())


def family_corpus(seed: int = 4, num_families: int = 12, size: int = 6) -> list[str]:
    """Texts in which every family descends from one text, a few words changed from each to the next; shuffled.

    Some have one of two last paragraphs.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    words = ["".join(generator.choice([*"abcdefghij"], 6)) for _ in range(3000)]
    texts = []
    for _ in range(num_families):
        text = list(generator.choice(words, 60))
        for _ in range(size):
            for place in generator.choice(60, int(generator.integers(0, 6)), replace=False):
                text[place] = str(generator.choice(words))
            footer = generator.choice(
                ["", "\nshared by many documents here", "\nand by these others there too"]
            )
            texts.append(" ".join(text) + footer)
    generator.shuffle(texts)
    return texts


TEXTS = family_corpus()


def split(texts: Sequence[str], bounds: Sequence[int]) -> list[list[str]]:
    """The texts in shards that end at `bounds`."""
    edges = [0, *sorted(min(bound, len(texts)) for bound in bounds), len(texts)]
    return [list(texts[start:end]) for start, end in pairwise(edges)]
