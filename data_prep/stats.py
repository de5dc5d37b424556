"""Statistics of a preparation, for people and for `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cluster.manifest import read_manifest
from cluster.storage import is_committed
from data_prep.layout import DEDUP, DOCUMENTS
from data_prep.token_store import TokenStore

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_PREPARATION_COUNTS = {
    DOCUMENTS: ("documents_read", "documents_too_short", "rejects", "text_bytes"),
    DEDUP: ("duplicates",),
}
"""Which counts of the earlier stages' manifests belong to the story of the tokens."""


def describe_store(store: TokenStore) -> dict[str, Any]:
    """Counts and lengths of a token store as plain data, over all and by source.

    Keys: `path`, `fingerprint`, `vocab_size`, `dtype`, `size_bytes`, and `total` and `sources` (by name) with
    `documents`, `tokens`, `sentences`, `kept_bytes` (UTF-8 text), `bytes_per_token`, `tokens_per_document`
    (quantiles), and what earlier stages read, dropped and rejected (where those artefacts are still there).
    """
    numbers, names = store.sources()
    recorded = store.manifest.stats
    lost = _preparation_counts(store.path.parent)
    everything = np.ones(store.num_documents, dtype=bool)
    return {
        "path": str(store.path),
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocab_size,
        "dtype": store.dtype.name,
        "size_bytes": sum(entry.size_bytes for entry in store.manifest.files),
        "total": _describe(store, everything, recorded) | lost.get("", {}),
        "sources": {
            name: _describe(store, numbers == number, recorded.get("sources", {}).get(name, {}))
            | lost.get(name, {})
            for number, name in enumerate(names)
        },
    }


def _describe(store: TokenStore, chosen: np.ndarray, recorded: dict[str, Any]) -> dict[str, Any]:
    lengths = store.lengths[chosen]
    num_tokens = int(lengths.sum())
    kept_bytes = int(recorded.get("kept_bytes", 0))
    return {
        "documents": len(lengths),
        "tokens": num_tokens,
        "sentences": int(store.sentence_counts[chosen].sum()),
        "kept_bytes": kept_bytes,
        "bytes_per_token": round(kept_bytes / num_tokens, 3) if num_tokens else 0.0,
        "tokens_per_document": _quantiles(lengths),
    }


def _quantiles(lengths: np.ndarray) -> dict[str, int]:
    if len(lengths) == 0:
        return {}
    values = np.quantile(lengths, QUANTILES, method="nearest")
    return {f"p{round(100 * share)}": int(value) for share, value in zip(QUANTILES, values, strict=True)}


def _preparation_counts(out: Path) -> dict[str, dict[str, int]]:
    """Counts of the earlier stages, by source; over all sources under the empty name."""
    counts: dict[str, dict[str, int]] = {"": {}}
    for stage, keys in _PREPARATION_COUNTS.items():
        if not is_committed(out / stage):
            continue
        stats = read_manifest(out / stage).stats
        for name, own in [("", stats), *stats.get("sources", {}).items()]:
            counts.setdefault(name, {}).update({key: own[key] for key in keys if key in own})
    return counts
