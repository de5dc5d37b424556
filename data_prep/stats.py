"""Statistics of a token store as plain data; and one page about it, with plots and sampled documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.artefacts.places import as_place
from cluster.artefacts.shard_records import summarize_log
from cluster.artefacts.visible import render, svg
from cluster.copies import beside, manifest_at
from data_prep.dedup.config import meeting_probability
from data_prep.hashing import hash_strings
from data_prep.layout import DECONTAMINATION, DEDUP, DOCUMENTS, STAGES
from data_prep.token_store import TokenStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    `NearDedup.describe`), where they were removed.
    """
    out = as_place(store.place).parent
    recorded = store.manifest.stats
    manifests = {stage: manifest_at(out / stage) for stage in _EARLIER}
    made = {stage: manifest.stats if manifest else {} for stage, manifest in manifests.items()}
    earlier = _earlier_counts(made.values())
    counts = {
        name: {key: count for key, count in own.items() if not key.startswith(FILTER_PREFIX)}
        for name, own in earlier.items()
    }
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
        "total": _describe(store, everything, recorded) | counts.get("", {}),
        "sources": {
            name: _describe(store, source_numbers == number, by_source.get(name, {})) | counts.get(name, {})
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


def _filters(own: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """`filters.00_length.dropped.too_short` as `{"00_length": {"dropped.too_short": ...}}`."""
    found: dict[str, dict[str, int]] = {}
    for key, count in own.items():
        if key.startswith(FILTER_PREFIX):
            name, _, what = key.removeprefix(FILTER_PREFIX).partition(".")
            found.setdefault(name, {})[what] = count
    return dict(sorted(found.items()))


# -- the page ------------------------------------------------------------------------------------------------

TEMPLATE = Path(__file__).with_name("report.html.j2")
SAMPLED_DOCUMENTS = 12
EXCERPT_CHARACTERS = 700
SAMPLE_SALT = 2
"""Hash seed that makes the sampled documents independent of the held-out ones."""
BINS_PER_DECADE = 8


def render_report(store: TokenStore, facts: Mapping[str, Any]) -> str:
    """HTML of one self-contained page; the same store gives the same page, timings aside.

    Args:
        facts: what `describe_store` says of the store.
    """
    numbers, names = store.sources()
    near = facts.get("near_duplicates")
    curve = {"Near-duplicates found, by their similarity": found_by_similarity(near)} if near else {}
    lengths = {name: store.lengths[numbers == number] for number, name in enumerate(names)}
    # The documents with the lowest hashed ids, so that every run shows the same; none where all are gone.
    documents, samples = manifest_at(beside(store.path, DOCUMENTS)), []
    if documents is not None and documents.stats:
        hashes = hash_strings(store.doc_ids(), salt=SAMPLE_SALT)
        samples = list(store.documents(np.sort(np.argsort(hashes, kind="stable")[:SAMPLED_DOCUMENTS])))
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        {"number": _number},
        facts=facts,
        # The row of an only language would repeat the figures of all sources.
        tables=[
            ("Sources", facts["sources"]),
            *([("Languages", facts["languages"])] if len(facts["languages"]) > 1 else []),
        ],
        plots=curve | {"Lengths of documents": length_histogram(lengths)},
        dropped=documents.stats.get("dropped_examples", []) if documents else [],
        samples=samples,
        excerpt=EXCERPT_CHARACTERS,
    )


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(own)}" for name, own in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def length_histogram(lengths: Mapping[str, np.ndarray]) -> str:
    """Documents by their number of tokens, one line for each name; both axes logarithmic."""
    shortest = min((int(own.min()) for own in lengths.values() if len(own)), default=1)
    longest = max((int(own.max()) for own in lengths.values() if len(own)), default=1)
    first, last = np.log10(max(shortest, 1)), np.log10(longest + 1)
    edges = np.logspace(first, last, max(BINS_PER_DECADE, round(BINS_PER_DECADE * (last - first))) + 1)

    def draw(axes: Axes) -> None:
        for name, own in lengths.items():
            counts, _ = np.histogram(np.maximum(own, 1), bins=edges)
            axes.stairs(counts, edges, label=name)
        axes.set(xscale="log", yscale="symlog", xlabel="tokens per document", ylabel="documents")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        if len(lengths) > 1:
            axes.legend(fontsize="small")

    return svg(draw)


def found_by_similarity(near: Mapping[str, Any]) -> str:
    """The S-curve of near-deduplication with the threshold, as `NearDedup.describe` gives them."""
    similarity = np.linspace(0, 1, 201)
    found = meeting_probability(similarity, near["bands"], near["rows"])
    if near["verified"]:
        found = np.where(similarity < near["threshold"], 0, found)

    def draw(axes: Axes) -> None:
        axes.plot(similarity, found, label=f"{near['bands']} bands of {near['rows']} values")
        at_threshold = near["found"][f"{near['threshold']:g}"]
        axes.axvline(near["threshold"], linestyle=":", label=f"threshold: {at_threshold:.1%} of pairs found")
        axes.set(xlabel="Jaccard similarity of a pair", ylabel="probability that it is found")
        axes.legend(fontsize="small")

    return svg(draw)
