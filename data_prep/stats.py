"""Statistics of a preparation, for people and for `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cluster.artefacts.places import as_place
from cluster.artefacts.shard_records import summarize_log
from cluster.copies import manifest_at
from data_prep.layout import DECONTAMINATION, DEDUP, DOCUMENTS, STAGES
from data_prep.token_store import TokenStore

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FILTER_PREFIX = "filters."
_EARLIER = (DOCUMENTS, DEDUP, DECONTAMINATION)
"""The stages before the tokens whose counts belong to the story."""
_OWN_COUNTS = frozenset({"rows", "tokens"})
"""Counts that every artefact has, and that mean something else in each."""


def describe_store(store: TokenStore) -> dict[str, Any]:
    """Counts and lengths of a token store as plain data, over all, by source and by language.

    Keys: `path`, `fingerprint`, `vocab_size`, `dtype`, `size_bytes`, and `total`, `sources` and `languages` (by
    name) with `documents`, `tokens`, `sentences`, `kept_bytes` (UTF-8 text), `bytes_per_token` and
    `tokens_per_document` (quantiles); total and sources also with `unknown_rate` (share of the tokens that are the
    unknown token), `exact_lines` (share of a sample of lines that decoding gives back but for white space), and what
    earlier stages read, dropped and rejected
    (where those artefacts are still there). `filters`: by source and filter the documents kept, changed and
    dropped. `left_out`: by source, what it left out of its texts, such as `templates`, by name. `stages`: what the
    log of each says of speed and memory. `near_duplicates`: which share of them was to be found (see
    `describe_bands`), where they were removed.
    """
    out = as_place(store.place).parent
    recorded = store.manifest.stats
    manifests = {stage: manifest_at(out / stage) for stage in _EARLIER}
    made = {stage: manifest.stats if manifest else {} for stage, manifest in manifests.items()}
    earlier = _earlier_counts(made.values())
    everything = np.ones(store.num_documents, dtype=bool)
    by_source = recorded.get("sources", {})
    source_numbers, sources = store.sources()
    lang_numbers, langs = store.langs()
    return {
        "path": store.place,
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocab_size,
        "dtype": store.dtype.name,
        "size_bytes": sum(entry.size_bytes for entry in store.manifest.files),
        "total": _describe(store, everything, recorded) | _counts(earlier.get("", {})),
        "sources": {
            name: _describe(store, source_numbers == number, by_source.get(name, {}))
            | _counts(earlier.get(name, {}))
            for number, name in enumerate(sources)
        },
        "languages": {
            name: _describe(
                store, lang_numbers == number, {"kept_bytes": recorded.get(f"kept_bytes.{name}", 0)}
            )
            for number, name in enumerate(langs)
            if (lang_numbers == number).any()
        },
        "filters": {name: found for name, own in earlier.items() if name and (found := _filters(own))},
        "left_out": made[DOCUMENTS].get("left_out", {}),
        "stages": {
            stage: summary
            for stage in STAGES
            # Logs are read where they were written only.
            if isinstance(out, Path) and (summary := summarize_log(out / stage))
        },
        **({"near_duplicates": made[DEDUP]["near"]} if "near" in made[DEDUP] else {}),
    }


def _describe(store: TokenStore, chosen: np.ndarray, recorded: Mapping[str, Any]) -> dict[str, Any]:
    lengths = store.lengths[chosen]
    num_tokens, kept_bytes = int(lengths.sum()), int(recorded.get("kept_bytes", 0))
    quantiles = np.quantile(lengths, QUANTILES, method="nearest").tolist() if len(lengths) else []
    described = {
        "documents": len(lengths),
        "tokens": num_tokens,
        "sentences": int(store.sentence_counts[chosen].sum()),
        "kept_bytes": kept_bytes,
        "bytes_per_token": round(kept_bytes / num_tokens, 3) if num_tokens else 0.0,
        "tokens_per_document": {
            f"p{round(100 * share)}": int(value) for share, value in zip(QUANTILES, quantiles, strict=False)
        },
    }
    # How well the tokenizer fits the text.
    if recorded.get("lines_tried"):
        described["unknown_rate"] = round(recorded["unknown_tokens"] / max(1, num_tokens), 6)
        described["exact_lines"] = round(recorded["exact_lines"] / recorded["lines_tried"], 4)
    return described


def _earlier_counts(stages: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Counts of the earlier stages, by source; over all sources under the empty name."""
    counts: dict[str, dict[str, int]] = {"": {}}
    for stats in stages:
        if not stats:
            continue
        for name, own in [("", stats), *stats.get("sources", {}).items()]:
            found = {key: value for key, value in own.items() if isinstance(value, int)}
            so_far = counts.setdefault(name, {})
            rejects = so_far.get("rejects", 0) + found.get("rejects", 0)
            so_far.update({key: value for key, value in found.items() if key not in _OWN_COUNTS})
            so_far["rejects"] = rejects
    return counts


def _counts(own: Mapping[str, int]) -> dict[str, int]:
    return {key: count for key, count in own.items() if not key.startswith(FILTER_PREFIX)}


def _filters(own: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """`filters.00_length.dropped.too_short` as `{"00_length": {"dropped.too_short": ...}}`."""
    found: dict[str, dict[str, int]] = {}
    for key, count in own.items():
        if key.startswith(FILTER_PREFIX):
            name, _, what = key.removeprefix(FILTER_PREFIX).partition(".")
            found.setdefault(name, {})[what] = count
    return dict(sorted(found.items()))
