"""The report itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cluster.artefacts.visible import finalize
from cluster.copies import beside, manifest_at
from data_prep.document import Document
from data_prep.hashing import hash_strings
from data_prep.layout import DOCUMENTS
from data_prep.report.plots import found_by_similarity, length_histogram
from data_prep.token_store import TokenStore

TEMPLATE = Path(__file__).with_name("page.html.j2")
SAMPLED_DOCUMENTS = 12
EXCERPT_CHARACTERS = 700
SAMPLE_SALT = 2
"""Hash seed that makes the sampled documents independent of the held-out ones."""


def render_report(store: TokenStore, facts: Mapping[str, Any]) -> str:
    """HTML of one self-contained page; the same store gives the same page, timings aside.

    Args:
        facts: what `describe_store` says of the store.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        facts=facts,
        # The row of an only language would repeat the figures of all sources.
        tables=[
            ("Sources", facts["sources"]),
            *([("Languages", facts["languages"])] if len(facts["languages"]) > 1 else []),
        ],
        plots=_plots(store, facts),
        dropped=_documents_stats(store).get("dropped_examples", []),
        samples=_sampled(store),
        excerpt=EXCERPT_CHARACTERS,
    )


def _plots(store: TokenStore, facts: Mapping[str, Any]) -> dict[str, str]:
    numbers, names = store.sources()
    lengths = {name: store.lengths[numbers == number] for number, name in enumerate(names)}
    near = facts.get("near_duplicates")
    curve = {"Near-duplicates found, by their similarity": found_by_similarity(near)} if near else {}
    return curve | {"Lengths of documents": length_histogram(lengths)}


def _sampled(store: TokenStore) -> list[Document]:
    """The documents with the lowest hashed ids, so that every run shows the same."""
    if not _documents_stats(store):
        return []
    hashes = hash_strings(store.doc_ids(), salt=SAMPLE_SALT)
    chosen = np.sort(np.argsort(hashes, kind="stable")[:SAMPLED_DOCUMENTS])
    return list(store.documents(chosen))


def _documents_stats(store: TokenStore) -> dict[str, Any]:
    """The statistics of the documents beside a store; none where they are gone."""
    manifest = manifest_at(beside(store.path, DOCUMENTS))
    return manifest.stats if manifest else {}


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(own)}" for name, own in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
