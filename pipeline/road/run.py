"""A road from source files to scores: every stage in turn, each finished one recognised by its fingerprint."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cluster import signals
from cluster.artefacts.errors import ClozeError, PreemptedError
from cluster.artefacts.manifest import InputEntry, read_manifest
from cluster.runtime import ray_runtime
from data_prep.config import PreparationConfig
from data_prep.job import Prepared, prepare
from pipeline.checkpoint.references import resolve_model
from pipeline.pretrain.launch import train_to_end
from pipeline.road.stages import RoadConfig, Stages
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.evaluation_sets import evaluation_texts
from pipeline.tune.run import finetune
from pipeline.tune.scores import Score
from pipeline.tune.workload import scores_directory

Stage = tuple[str, Callable[[], None]]
"""Title of a stage, and what does it or finds it done."""


@dataclass
class Finished:
    """The finished stages of a road."""

    prepared: list[Prepared] = field(default_factory=list)
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

    @property
    def stores(self) -> list[Path]:
        """Token stores, by preparation."""
        return [prepared.token_store for prepared in self.prepared]


def stages_of(
    road: RoadConfig,
    loaded: Stages,
    found: Finished,
    *,
    replace: bool = False,
    submission_id: str | None = None,
    train: Callable[[PretrainConfig], RunDirectory] | None = None,
) -> list[Stage]:
    """The stages of a road in order; each adds what it made to `found`.

    Args:
        replace: allow artefacts of other settings in the places of the stages to be replaced.
        submission_id: the Ray job that does the work, if one does.
        train: makes the run in place of `train_to_end`.
    """
    train = train or partial(train_to_end, submission_id=submission_id)
    stages: list[Stage] = [
        (f"prepare {one.name}", partial(_prepare, one, replace, found)) for one in loaded.data
    ]
    stages.append((f"pretrain {loaded.pretrain.name}", partial(_pretrain, road, loaded, train, found)))
    for one in loaded.finetune:
        stages.append((f"finetune {one.name}", partial(_finetune, one, replace, found)))
    return stages


def run_stages(
    stages: Sequence[Stage], loaded: Stages, found: Finished, *, typed: str, address: str | None = None
) -> None:
    """Do every stage that is not finished; the same command continues after whatever ended it.

    Args:
        typed: the command that continues, for messages.
        address: the Ray cluster; None takes the run's `cluster.address`.

    Raises:
        ClozeError: as the verb of the stage that failed; the message names the road's command beside the verb's.
    """
    cluster = loaded.pretrain.cluster
    num_cpus = max(os.cpu_count() or 1, cluster.workers * cluster.cpus_per_worker)
    kept = "all finished stages, and of the one in progress what it committed"
    with signals.goes_on_by(typed, kept), ray_runtime(address or cluster.address, num_cpus=num_cpus):
        for number, (title, do) in enumerate(stages, 1):
            with _stage(f"{number}/{len(stages)}  {title}", title, typed, found.seconds):
                do()


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


def _prepare(config: PreparationConfig, replace: bool, found: Finished) -> None:
    prepared = prepare(config, replace=replace, evaluation_texts=evaluation_texts)
    found.prepared.append(prepared)
    found.inputs.append(_entry(prepared.token_store))


def _pretrain(
    road: RoadConfig, stages: Stages, train: Callable[[PretrainConfig], RunDirectory], found: Finished
) -> None:
    found.run = train(stages.pretrain)
    found.reference = f"{found.run.path}@{road.checkpoint}"
    model = resolve_model(found.reference, stages.pretrain.runs_dir)
    found.reference = model.reference
    found.inputs.append(InputEntry(kind="checkpoint", uri=model.reference, fingerprint=model.fingerprint))


def _finetune(config: FinetuneConfig, replace: bool, found: Finished) -> None:
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
