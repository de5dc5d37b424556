"""The plan of a preparation for `--dry-run`; nothing is started."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from cluster.artefacts.storage import is_committed
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.input_checks import check_inputs
from data_prep.inputs import Inputs, group_inputs, list_inputs
from data_prep.layout import DECONTAMINATION, STAGES, TAKEDOWN


def plan_preparation(
    config: PreparationConfig,
    evaluation_texts: EvaluationTexts | None = None,
    inputs: Inputs | None = None,
) -> dict[str, Any]:
    """Resolve files, sizes and shards. Reads no file's content, writes nothing and needs no Ray.

    Args:
        evaluation_texts: as for `prepare`.
        inputs: the source files, where they are listed already and everything that is named is known to be there.

    Returns:
        `out`; `settings` (filters, what is removed and the tokenizer, in a few words); `files`, `size_bytes` (of
        the files as they are stored) and `shards` in all; the same with `largest_shard_bytes` (the most that one
        task reads) for each of `sources`; and for each of `stages` whether `out` holds it: `committed` (maybe of
        other inputs), `started` or `absent`. Where near-duplicates are removed, `near_duplicates` says which share
        of them will be found (see `describe_bands`).

    Raises:
        MissingInputError: a path or pattern matches nothing, or the pretrained tokenizer or an evaluation set
            does not exist.
        ConfigError: `decontaminate` names what `evaluation_texts` does not give.
    """
    if inputs is None:
        inputs = list_inputs(config, check_inputs(config, evaluation_texts))
    groups = group_inputs(inputs, config.shard_bytes)
    files = Counter(inputs.source_numbers)
    sources = {}
    for number, source in enumerate(config.sources):
        sizes = [size for shard, size in enumerate(groups.sizes) if groups.source_number(shard) == number]
        sources[source.name] = {
            "kind": source.kind,
            "files": files[number],
            "size_bytes": sum(sizes),
            "shards": len(sizes),
            "largest_shard_bytes": max(sizes, default=0),
        }
    totals = {key: sum(own[key] for own in sources.values()) for key in ("files", "size_bytes", "shards")}
    left_out = {DECONTAMINATION: not config.decontaminate.tasks, TAKEDOWN: config.takedown is None}
    wanted = [name for name in STAGES if not left_out.get(name)]
    stages = {name: _state(config.out, name) for name in wanted}
    plan = {
        "name": config.name,
        "out": str(config.out),
        "settings": _settings(config),
        **totals,
        "sources": sources,
        "stages": stages,
    }
    return plan | ({"near_duplicates": near.describe()} if (near := config.dedup.near) is not None else {})


def _settings(config: PreparationConfig) -> dict[str, Any]:
    """The treatment of the text, in the words of the configuration."""
    dedup = config.dedup
    removed = {"documents": dedup.documents, "paragraphs": dedup.paragraphs, "near-duplicates": dedup.near}
    cleaned = config.decontaminate
    tokenizer = config.tokenizer.model_dump(mode="json", include={"kind", "vocab_size", "path"})
    return {
        "filters": [filter.kind for filter in config.filters],
        "deduplicated": [name for name, setting in removed.items() if setting],
        "decontaminated of": list(cleaned.tasks),
        **({"overlaps are": {"drop": "dropped", "cut": "cut"}[cleaned.action]} if cleaned.tasks else {}),
        "tokenizer": tokenizer,
        "sentences": config.sentences,
    }


def _state(out: Path, name: str) -> Literal["committed", "started", "absent"]:
    if is_committed(out / name):
        return "committed"
    return "started" if any(out.glob(f".{name}.*.partial")) else "absent"
