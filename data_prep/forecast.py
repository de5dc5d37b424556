"""Hours, memory and disk of a preparation on other machines, from the logs of a finished one (`cloze plan`).

Every stage and step of the finished preparation logged the seconds, memory and size of its tasks. Work grows with the
bytes of the sources, as the benchmark of stages shows for memory and time; what is made once, such as the tokenizer,
does not grow. A stage begins when the one before it has ended, so its last tasks leave processors idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import Manifest, read_manifest
from cluster.artefacts.shard_records import summarize_log
from cluster.artefacts.storage import is_committed
from data_prep.config import PreparationConfig
from data_prep.decontaminate.steps import EVALUATION
from data_prep.dedup.records import count_partitions
from data_prep.inputs import group_inputs, list_inputs, stored_bytes
from data_prep.layout import DECONTAMINATION, DOCUMENTS, STAGES, TAKEDOWN, TOKENIZER, TOKENS, WORK

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
    _require_logs(measured, manifests)
    measured_bytes = _measured_bytes(manifests[DOCUMENTS])
    measured_shards = len(manifests[DOCUMENTS].files)
    if source_bytes is None:
        inputs = list_inputs(config)
        source_bytes = sum(inputs.sizes)
        num_shards = len(group_inputs(inputs, config.shard_bytes))
    else:
        num_shards = math.ceil(source_bytes / config.shard_bytes)
    scale, cpus = source_bytes / measured_bytes, nodes * cpus_per_node
    growth = _Growth(
        scale,
        measured_shards,
        num_shards,
        count_partitions(round(scale * manifests[DOCUMENTS].stats["rows"])),
    )
    logged = tuple(_logged(measured))
    steps = tuple(_step(directory, growth, cpus) for directory in logged)
    return Forecast(
        config.name,
        nodes,
        cpus_per_node,
        source_bytes,
        measured_bytes,
        steps,
        (*_differences(config, manifests, measured, scale), *_waits(logged)),
    )


def _require_logs(measured: Path, manifests: dict[str, Manifest]) -> None:
    remedy = "prepare a sample of the corpus with the same settings, and name its `out`"
    if TOKENS not in manifests or DOCUMENTS not in manifests:
        raise ConfigError(f"{measured} holds no finished preparation.", next_step=remedy)
    if not summarize_log(measured / DOCUMENTS):
        raise ConfigError(f"{measured} has no logs of its shards' speeds.", next_step=remedy)


def _measured_bytes(documents: Manifest) -> int:
    try:
        return sum(stored_bytes(entry.uri) for entry in documents.inputs)
    except MissingInputError as error:
        raise MissingInputError(
            f"{error.problem} Speeds are per byte of the sources that were measured.",
            next_step="restore the file, or measure with a preparation whose sources are there",
        ) from None


def _logged(measured: Path) -> Iterator[Path]:
    """Directories with a log, oldest first as far as that is known."""
    work = sorted(path for path in (measured / WORK).glob("*") if path.is_dir())
    for directory in (*(measured / name for name in STAGES), *work):
        if summarize_log(directory):
            yield directory


@dataclass(frozen=True, slots=True)
class _Growth:
    """The planned preparation beside the measured one."""

    scale: float
    """Bytes of its sources, by those that were measured."""
    measured_shards: int
    num_shards: int
    num_partitions: int
    """Tasks of a step that brings equal records together."""

    def tasks(self, measured: int) -> int:
        """Tasks of a step that had so many: as many as shards, or as partitions."""
        if measured < self.measured_shards:
            return max(measured, self.num_partitions)
        return max(1, round(measured * self.num_shards / self.measured_shards))


def _step(directory: Path, growth: _Growth, cpus: int) -> StepForecast:
    log = summarize_log(directory)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    cpu_s, tasks = log["seconds"], log["shards"]
    if directory.name not in _ONCE:
        cpu_s, size, tasks = cpu_s * growth.scale, round(size * growth.scale), growth.tasks(tasks)
    # Tasks of equal length: the last round of them may leave processors idle.
    seconds = max(math.ceil(tasks / cpus) * cpu_s / tasks, tasks * DRIVER_S_PER_TASK)
    return StepForecast(directory.name, tasks, cpu_s, seconds, size, log["peak_rss_bytes"])


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
    wanted_stages = {DECONTAMINATION: bool(config.decontaminate.tasks), TAKEDOWN: config.takedown is not None}
    for name, wanted in wanted_stages.items():
        if wanted and name not in manifests:
            yield f"{name} was not measured, and is not counted"
    if not (measured / WORK).is_dir():
        yield f"{measured / WORK} is gone: the steps that lay there are not counted"
    if scale > 1000:
        yield f"the sources are {scale:,.0f} times those that were measured: measure a larger sample"


def _waits(logged: Sequence[Path]) -> Iterator[str]:
    """Whether the measured tasks waited for processors or for storage, which makes the forecast too long."""
    logs = [summarize_log(directory) for directory in logged]
    worked, took = (sum(log[key] for log in logs) for key in ("processor_seconds", "seconds"))
    if took - worked > _WAITED * took:
        yield (
            f"the measured tasks worked for {worked / took:.0%} of their time: the machine was busy, or its storage"
            " slow; measure where nothing else runs, or expect fewer hours"
        )


def _shown(value: Any) -> str:
    return (", ".join(sorted(value)) or "none") if isinstance(value, set) else str(value)
