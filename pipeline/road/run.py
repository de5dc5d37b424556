"""A road from source files to scores: every stage in turn, each finished one recognised by its fingerprint."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import signals
from cluster.artefacts.errors import ClozeError, PreemptedError
from cluster.artefacts.manifest import InputEntry, read_manifest
from cluster.runtime import ray_runtime
from data_prep.job import prepare
from pipeline.checkpoint.references import resolve_model
from pipeline.pretrain.continuing import train_to_end
from pipeline.road.config import RoadConfig
from pipeline.road.stages import Stages
from pipeline.run.directory import RunDirectory
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.evaluation_sets import evaluation_texts
from pipeline.tune.run import finetune
from pipeline.tune.scores import Score
from pipeline.tune.workload import scores_directory


@dataclass
class Travelled:
    """The finished stages of a road."""

    stores: list[Path] = field(default_factory=list)
    """Token stores that its preparations made, by preparation."""
    run: RunDirectory | None = None
    reference: str = ""
    """The checkpoint that was fine-tuned."""
    scores: dict[Path, list[Score]] = field(default_factory=dict)
    """By directory of the scores' artefact, in the order of the configurations."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Kinds of the tasks, by their names."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage in this process, by its title: seconds only, where an earlier command finished it."""
    inputs: list[InputEntry] = field(default_factory=list)
    """Artefacts that the stages made: token stores, the checkpoint, scores."""


def travel(
    road: RoadConfig,
    stages: Stages,
    *,
    typed: str,
    replace: bool = False,
    address: str | None = None,
    submission_id: str | None = None,
) -> Travelled:
    """Do every stage that is not finished; the same command continues after whatever ended it.

    Args:
        typed: the command that continues, for messages.
        replace: allow artefacts of other settings in the places of the stages to be replaced.
        address: the Ray cluster; None takes the run's `cluster.address`.
        submission_id: the Ray job that does the work, if one does.

    Raises:
        ClozeError: as the verb of the stage that failed; the message names the road's command beside the verb's.
    """
    found = Travelled()
    parts: list[tuple[str, Callable[[], None]]] = []
    for config in stages.data:
        parts.append((f"prepare {config.name}", lambda config=config: _prepare(config, replace, found)))
    parts.append((f"pretrain {stages.pretrain.name}", lambda: _pretrain(road, stages, submission_id, found)))
    for config in stages.finetune:
        parts.append((f"finetune {config.name}", lambda config=config: _finetune(config, replace, found)))
    cluster = stages.pretrain.cluster
    num_cpus = max(os.cpu_count() or 1, cluster.workers * cluster.cpus_per_worker)
    kept = "all finished stages, and of the one in progress what it committed"
    with signals.goes_on_by(typed, kept), ray_runtime(address or cluster.address, num_cpus=num_cpus):
        for number, (title, do) in enumerate(parts, 1):
            with _stage(f"{number}/{len(parts)}  {title}", title, typed, found.seconds):
                do()
    return found


@contextmanager
def _stage(shown: str, title: str, typed: str, seconds: dict[str, float]) -> Iterator[None]:
    """Announce a stage and measure it; its error says how the road continues."""
    print(f"\n{shown}", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        yield
    except ClozeError as error:
        if isinstance(error, PreemptedError) or not error.next_step:
            error.next_step = typed
        else:
            error.next_step += f"; then the road goes on by: {typed}"
        raise
    seconds[title] = time.monotonic() - started


def _prepare(config: Any, replace: bool, found: Travelled) -> None:
    prepared = prepare(config, replace=replace, evaluation_texts=evaluation_texts)
    found.stores.append(prepared.token_store)
    found.inputs.append(_entry(prepared.token_store))


def _pretrain(road: RoadConfig, stages: Stages, submission_id: str | None, found: Travelled) -> None:
    found.run = train_to_end(stages.pretrain, submission_id=submission_id)
    found.reference = f"{found.run.path}@{road.checkpoint}"
    model = resolve_model(found.reference, stages.pretrain.runs_dir)
    found.reference = model.reference
    found.inputs.append(InputEntry(kind="checkpoint", uri=model.reference, fingerprint=model.fingerprint))


def _finetune(config: FinetuneConfig, replace: bool, found: Travelled) -> None:
    assert found.run is not None, "pre-training comes first"
    runs_dir = found.run.path.parent
    config = config.model_copy(update={"runs_dir": runs_dir})
    model = resolve_model(f"{found.run.path}@{found.reference.rpartition('@')[2]}", runs_dir)
    scores = finetune(config, model, replace=replace)
    directory = scores_directory(config, model)
    found.scores[directory] = scores
    found.kinds |= {name: task.kind for name, task in config.tasks.items()}
    found.inputs.append(_entry(directory))


def _entry(directory: Path) -> InputEntry:
    manifest = read_manifest(directory)
    return InputEntry(kind=manifest.kind, uri=str(directory), fingerprint=manifest.fingerprint)


def command(config: Path, overrides: Sequence[str]) -> str:
    """The `cloze road` that was typed, to be typed again."""
    return shlex.join(["cloze", "road", str(config), *overrides])
