"""Preparations of small corpora, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import Manifest
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.document import Document
from data_prep.documents import DocumentStore
from data_prep.job import Prepared, prepare

INPUTS = Path(__file__).with_name("inputs")
RECORDS = {"kind": "json_lines", "id_field": "id", "text_field": "text"}
SMALLEST = {"vocab_size": 512}


def make(
    out: Path,
    sources: Sequence[Mapping[str, Any]],
    *,
    evaluation_texts: EvaluationTexts | None = None,
    **settings: Any,
) -> Prepared:
    """Prepare a corpus, with the smallest tokenizer unless `settings` say otherwise."""
    plain = {"name": "golden", "out": out, "sources": sources, "min_characters": 20, "tokenizer": SMALLEST}
    config = PreparationConfig.model_validate(plain | settings)
    return prepare(config, evaluation_texts=evaluation_texts)


def identities(prepared: Prepared) -> dict[str, str]:
    """By kind of artefact, its version and its fingerprint."""
    found = (
        prepared.documents, prepared.dedup, prepared.selection, prepared.tokenizer, prepared.tokens
    )  # fmt: skip
    return {manifest.kind: identity(manifest) for manifest in found}


def identity(manifest: Manifest) -> str:
    """Version and fingerprint of an artefact."""
    return f"version {manifest.config['version']}, {manifest.fingerprint}"


def kept(prepared: Prepared) -> list[list[Document]]:
    """By shard, the documents that are tokenised."""
    store = DocumentStore(prepared.out / "documents", prepared.out / prepared.selection.kind)
    return [list(store.read(shard)) for shard in range(store.num_shards)]
