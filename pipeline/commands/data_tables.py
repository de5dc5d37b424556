"""Tables of the `cloze data` verbs; sources, languages and filters are rows, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.commands.output import print_mapping, print_table, shown

_HELD = ("documents", "tokens", "sentences", "kept_bytes", "bytes_per_token")
_QUANTILES = {"p5": "5%", "p50": "half", "p95": "95%", "p100": "longest"}
"""Quantiles of tokens per document, and their columns."""
_FILTER_COUNTS = ("kept", "changed", "dropped")
_LEFT_OUT_SHOWN = 10
"""Most names shown of markup that a source left out of its texts, the frequent ones first."""


def print_plan(plan: Mapping[str, Any]) -> None:
    """Show what `plan_preparation` found."""
    totals = {name: plan[name] for name in ("out", "files", "size_bytes", "shards")}
    print_mapping(f"{plan['name']}: what would be prepared", totals | plan["settings"])
    columns = ("kind", "files", "size_bytes", "shards", "largest_shard_bytes")
    rows = [[name, *(own[column] for column in columns)] for name, own in plan["sources"].items()]
    print_table("sources", ("source", "kind", "files", "bytes", "shards", "largest shard"), rows)
    print_table("finished stages", ("stage", ""), list(plan["stages"].items()))
    print_near_duplicates(plan.get("near_duplicates"))


def print_stats(found: Mapping[str, Any]) -> None:
    """Show what `describe_store` found."""
    store = ("path", "fingerprint", "vocab_size", "dtype", "size_bytes")
    print_mapping("token store", {name: found[name] for name in store})
    whole = {"(all)": found["total"]}
    _print_holdings("source", found["sources"] | (whole if len(found["sources"]) > 1 else {}))
    if len(found["languages"]) > 1:
        _print_holdings("language", found["languages"])
    _print_earlier(found["sources"])
    _print_fit(found["sources"])
    print_near_duplicates(found.get("near_duplicates"))
    _print_filters(found["filters"])
    _print_left_out(found["left_out"])
    _print_speeds(found["stages"])


def print_near_duplicates(near: Mapping[str, Any] | None) -> None:
    """Show the S-curve that `describe_bands` gives; nothing without one."""
    if near is None:
        return
    shape = f"{near['bands']} bands of {near['rows']} values"
    wrong = "pairs below the threshold are taken out by comparing their n-grams"
    if not near["verified"]:
        wrong = (
            f"{near['false_positives']:.0%} of found pairs below {near['threshold']:g}, if all similarities were"
            " equally frequent"
        )
    rows = [["found", *(f"{share:.1%}" for share in near["found"].values())]]
    print_table(f"near-duplicates found, by similarity ({shape}; {wrong})", ("", *near["found"]), rows)


def _print_holdings(what: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, own in parts.items():
        lengths = own["tokens_per_document"]
        rows.append([name, *(own[key] for key in _HELD), *(lengths.get(key) for key in _QUANTILES)])
    held = ("documents", "tokens", "sentences", "bytes", "bytes/token")
    columns = (what, *held, *_QUANTILES.values())
    print_table(f"by {what}; the last {len(_QUANTILES)} columns: tokens per document", columns, rows)


def _print_fit(sources: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [name, f"{own['unknown_rate']:.3%}", f"{own['exact_lines']:.1%}"]
        for name, own in sources.items()
        if "exact_lines" in own
    ]
    if rows:
        columns = ("source", "unknown tokens", "lines that decode as they were")
        print_table("how the tokenizer fits", columns, rows)


def _print_earlier(sources: Mapping[str, Mapping[str, Any]]) -> None:
    """Tables of documents read, dropped and rejected before the tokens."""
    skipped = {*_HELD, "tokens_per_document", "text_bytes", "unknown_rate", "exact_lines"}
    rows = [
        [name, key.replace("_", " ").replace(".", ": "), count]
        for name, own in sources.items()
        for key, count in own.items()
        if count and key not in skipped
    ]
    if rows:
        print_table("on the way to the tokens", ("source", "what", "count"), rows)


def _print_filters(filters: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    rows = []
    for source, own in filters.items():
        for name, counts in own.items():
            others = {
                key.removeprefix("dropped."): n for key, n in counts.items() if key not in _FILTER_COUNTS
            }
            kept = [counts.get(key, 0) for key in _FILTER_COUNTS]
            rows.append([source, name, *kept, shown(others) if others else ""])
    if rows:
        print_table("filters", ("source", "filter", *_FILTER_COUNTS, "why and what"), rows)


def _print_left_out(left_out: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    rows = [
        [source, what, name, count]
        for source, kinds in left_out.items()
        for what, counts in kinds.items()
        for name, count in list(counts.items())[:_LEFT_OUT_SHOWN]
    ]
    if rows:
        print_table("left out of sentences, most often", ("source", "what", "name", "times"), rows)


def _print_speeds(stages: Mapping[str, Mapping[str, Any]]) -> None:
    keys = ("shards", "bytes", "seconds", "mb_per_s", "rows_per_s", "peak_rss_bytes")
    rows = [[name, *(own[key] for key in keys)] for name, own in stages.items()]
    if rows:
        columns = ("stage", "shards", "bytes", "seconds", "MB/s", "rows/s", "peak memory, bytes")
        print_table("how fast it was made (per worker)", columns, rows)
