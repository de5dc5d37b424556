"""What a preparation takes, before anything is started.

`--dry-run` lists its files, shards and stages. `cloze plan` forecasts hours, memory and disk on other machines, from
the logs of a finished preparation: every stage and step logged the seconds, memory and size of its tasks. Work grows
with the bytes of the sources, as the benchmark of stages shows for memory and time; what is made once, such as the
tokenizer, does not grow. A stage begins when the one before it has ended, so its last tasks leave processors idle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import Manifest, read_manifest
from cluster.artefacts.shard_records import summarize_log
from cluster.artefacts.storage import is_committed
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.dedup.records import count_partitions
from data_prep.inputs import Input, check_inputs, group_inputs, list_inputs, stored_size_and_version
from data_prep.layout import DOCUMENTS, STAGES, TOKENIZER, TOKENS, WORK
from data_prep.stages.decontaminate import EVALUATION


def plan_preparation(
    config: PreparationConfig,
    evaluation_texts: EvaluationTexts | None = None,
    inputs: Sequence[Input] | None = None,
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
        of them will be found (see `NearDedup.describe`).

    Raises:
        MissingInputError: a path or pattern matches nothing, or the pretrained tokenizer or an evaluation set
            does not exist.
        ConfigError: `decontaminate` names what `evaluation_texts` does not give.
    """
    if inputs is None:
        inputs = check_inputs(config, evaluation_texts)
    shards = group_inputs(inputs, config.shard_bytes)
    files = Counter(own.source.name for own in inputs)
    sources = {}
    for source in config.sources:
        sizes = [shard.size_bytes for shard in shards if shard.source.name == source.name]
        sources[source.name] = {
            "kind": source.kind,
            "files": files[source.name],
            "size_bytes": sum(sizes),
            "shards": len(sizes),
            "largest_shard_bytes": max(sizes, default=0),
        }
    totals = {key: sum(own[key] for own in sources.values()) for key in ("files", "size_bytes", "shards")}
    plan = {
        "name": config.name,
        "out": str(config.out),
        "settings": _settings(config),
        **totals,
        "sources": sources,
        "stages": {name: _state(config.out, name) for name in config.stages},
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


# -- hours, memory and disk ----------------------------------------------------------------------------------

DRIVER_S_PER_TASK = 1.2e-3
"""Processor seconds that the driver spends on a shard that has a task of its own (`python -m tests.benchmarks
control_plane`); on tiny ones, which share tasks, a third."""
_ONCE = (TOKENIZER, EVALUATION)
"""Stages that cost the same for any corpus, because their input is bounded."""
_WAITED = 0.5
"""Share of their time that tasks wait for storage at most, on machines that do nothing else."""


@dataclass(frozen=True, slots=True)
class StepForecast:
    """One stage, or one step in `work/`."""

    name: str
    tasks: int
    cpu_s: float
    """Seconds of one processor, all tasks together."""
    seconds: float
    """By the clock, on all machines."""
    disk_bytes: int
    task_bytes: int
    """The most memory of one task."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The whole preparation."""

    name: str
    nodes: int
    cpus_per_node: int
    source_bytes: int
    measured_bytes: int
    """Stored bytes of the sources that were measured."""
    steps: tuple[StepForecast, ...]
    warnings: tuple[str, ...]

    @property
    def hours(self) -> float:
        """By the clock."""
        return sum(step.seconds for step in self.steps) / 3600

    @property
    def node_hours(self) -> float:
        """Hours of machines, to be multiplied with their price."""
        return self.hours * self.nodes

    @property
    def disk_bytes(self) -> int:
        """Everything that is kept, `work/` too."""
        return sum(step.disk_bytes for step in self.steps)

    @property
    def node_memory_bytes(self) -> int:
        """The most that the tasks of one machine hold at a time."""
        return max(step.task_bytes * min(step.tasks, self.cpus_per_node) for step in self.steps)


def forecast(
    config: PreparationConfig,
    measured: Path,
    *,
    nodes: int,
    cpus_per_node: int,
    source_bytes: int | None = None,
) -> Forecast:
    """Scale the logs of a finished preparation to the sources of `config`.

    Args:
        measured: its `out`.
        source_bytes: stored bytes of all sources; None takes the files that `config` names, as they are listed.

    Raises:
        MissingInputError: a source of `config` matches nothing, or a source file that was measured is gone.
        ConfigError: `measured` holds no finished preparation with logs.
    """
    manifests = {name: read_manifest(measured / name) for name in STAGES if is_committed(measured / name)}
    remedy = "prepare a sample of the corpus with the same settings, and name its `out`"
    if TOKENS not in manifests or DOCUMENTS not in manifests:
        raise ConfigError(f"{measured} holds no finished preparation.", next_step=remedy)
    if not summarize_log(measured / DOCUMENTS):
        raise ConfigError(f"{measured} has no logs of its shards' speeds.", next_step=remedy)
    documents = manifests[DOCUMENTS]
    try:
        measured_bytes = sum(stored_size_and_version(entry.uri)[0] for entry in documents.inputs)
    except MissingInputError as error:
        raise MissingInputError(
            f"{error.problem} Speeds are per byte of the sources that were measured.",
            next_step="restore the file, or measure with a preparation whose sources are there",
        ) from None
    if source_bytes is None:
        inputs = list_inputs(config)
        source_bytes = sum(own.size_bytes for own in inputs)
        num_shards = len(group_inputs(inputs, config.shard_bytes))
    else:
        num_shards = math.ceil(source_bytes / config.shard_bytes)
    scale = source_bytes / measured_bytes
    num_partitions = count_partitions(round(scale * documents.stats["rows"]))
    work = sorted(path for path in (measured / WORK).glob("*") if path.is_dir())
    places = (*(measured / name for name in STAGES), *work)
    logs = {place: log for place in places if (log := summarize_log(place))}
    steps = []
    for place, log in logs.items():
        disk_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        cpu_s, tasks = log["seconds"], log["shards"]
        if place.name not in _ONCE:
            cpu_s, disk_bytes = cpu_s * scale, round(disk_bytes * scale)
            # As many tasks as shards; or as partitions, in a step that brings equal records together.
            if tasks < len(documents.files):
                tasks = max(tasks, num_partitions)
            else:
                tasks = max(1, round(tasks * num_shards / len(documents.files)))
        # Tasks of equal length: the last round of them may leave processors idle.
        seconds = max(math.ceil(tasks / (nodes * cpus_per_node)) * cpu_s / tasks, tasks * DRIVER_S_PER_TASK)
        steps.append(StepForecast(place.name, tasks, cpu_s, seconds, disk_bytes, log["peak_rss_bytes"]))
    warnings = (*_differences(config, manifests, measured, scale), *_waits(list(logs.values())))
    return Forecast(config.name, nodes, cpus_per_node, source_bytes, measured_bytes, tuple(steps), warnings)


def _differences(
    config: PreparationConfig, manifests: dict[str, Manifest], measured: Path, scale: float
) -> Iterator[str]:
    """Differences between the measured preparation and the planned one."""
    sources = manifests[DOCUMENTS].config["sources"]
    pairs: Sequence[tuple[str, Any, Any]] = (
        ("sources", {one["kind"] for one in sources}, {one.kind for one in config.sources}),
        (
            "filters",
            {each["kind"] for one in sources for each in one["filters"]},
            {each.kind for one in config.sources for each in one.filters or config.filters},
        ),
        ("sentences", manifests[TOKENS].config["sentences"], config.sentences),
        ("tokenizer", manifests[TOKENIZER].config["kind"], config.tokenizer.kind),
    )
    for name, was, wanted in pairs:
        if was != wanted:
            yield f"{name}: measured with {_shown(was)}, planned with {_shown(wanted)}"
    for name in config.stages:
        if name not in manifests:
            yield f"{name} was not measured, and is not counted"
    if not (measured / WORK).is_dir():
        yield f"{measured / WORK} is gone: the steps that lay there are not counted"
    if scale > 1000:
        yield f"the sources are {scale:,.0f} times those that were measured: measure a larger sample"


def _waits(logs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether the measured tasks waited for processors or for storage, which makes the forecast too long."""
    worked, took = (sum(log[key] for log in logs) for key in ("processor_seconds", "seconds"))
    if took - worked > _WAITED * took:
        yield (
            f"the measured tasks worked for {worked / took:.0%} of their time: the machine was busy, or its storage"
            " slow; measure where nothing else runs, or expect fewer hours"
        )


def _shown(value: Any) -> str:
    return (", ".join(sorted(value)) or "none") if isinstance(value, set) else str(value)
