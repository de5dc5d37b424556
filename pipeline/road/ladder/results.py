"""The result of a ladder: every comparison on every task, as an artefact whose inputs are the scores."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest, write_durably
from cluster.artefacts.storage import (
    commit,
    is_committed,
    open_artefact,
    staging_directory,
    storage_errors,
)
from pipeline.road.ladder.arms import Ladder
from pipeline.road.ladder.comparing import ArmScore, Pair, arm_score, compare, floors_of, sums_of_task
from pipeline.road.ladder.config import CeilingConfig, read_costs
from pipeline.road.ladder.stages import Finetuning, Pretraining, place_of, stages_of
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.tune.report.bootstrap import Sums
from pipeline.tune.scores import KIND as SCORES_KIND
from pipeline.tune.scores import ScoresDirectory

KIND = "ladder"
RESULT_FILE = "ladder.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pretrained(_Frozen):
    """The pre-training of an arm."""

    arm: str
    objective: str
    """Empty without pre-training."""
    tokens: int
    """Tokens of text that it read, per seed."""
    flops: float
    """Model FLOPs, per seed."""
    held_out: tuple[float, float] | None = None
    """The loss on held-out samples before the first update and after the last one (or the metric that the run decides
    by), mean over the finished seeds: a pre-training that learned nothing shows here before it shows in scores. None
    without a finished run."""


class TaskResult(_Frozen):
    """A comparison on one task."""

    task: str
    scores: tuple[ArmScore, ...]
    """In the paper's order, the lowest first."""
    pairs: tuple[Pair, ...]
    """Neighbours in that order."""


class ComparisonResult(_Frozen):
    """A comparison on all of its tasks that are finished."""

    name: str
    title: str
    source: str
    finding: str
    order: str
    """Order of the arms in the paper, such as `none < masked`."""
    note: str
    tasks: tuple[TaskResult, ...]
    """Empty while no task is finished with at least two seeds."""


class TaskFacts(_Frozen):
    """Figures that surround the scores of a task."""

    task: str
    metric: str
    num_train_examples: int
    num_evaluation_examples: int
    floors: dict[str, float]
    """Scores without a network, by name."""
    ceiling: CeilingConfig | None


class LadderResult(_Frozen):
    """Everything that a ladder has found."""

    name: str
    seeds: tuple[int, ...]
    arms: tuple[Pretrained, ...]
    tasks: tuple[TaskFacts, ...]
    comparisons: tuple[ComparisonResult, ...]
    scores: dict[str, str]
    """The scores artefact of each fine-tuning, `ARM/SEED`: its directory below the ladder's `out`."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Costs of the finished stages."""

    stages: int
    finished: int
    wall_s: float
    """Sum over stages by the clock; some ran side by side."""
    cpu_s: float
    """Seconds of processor cores."""
    by_arm: Mapping[str, float]
    """Seconds of processor cores of the pre-training of an arm, mean over seeds."""


def collect(ladder: Ladder) -> LadderResult:
    """The result of the stages that are finished now.

    Raises:
        CorruptArtefactError: scores are damaged.
        ValueError: predictions have another score than was saved.
    """
    opened = {
        (arm, seed): ScoresDirectory.open(place)
        for arm in ladder.arms
        for seed in ladder.config.seeds
        if (place := place_of(Finetuning(ladder, arm, seed))) is not None
    }
    found: dict[tuple[str, str], dict[int, tuple[float, Sums]]] = {}
    for (arm, seed), scores in opened.items():
        for task in ladder.arms[arm].finetune.tasks:
            found.setdefault((arm, task), {})[seed] = sums_of_task(scores, task)
    return LadderResult(
        name=ladder.config.name,
        seeds=ladder.config.seeds,
        arms=tuple(_pretrained(ladder, arm) for arm in ladder.arms),
        tasks=tuple(_facts(ladder, task, list(opened.values())) for task in ladder.config.tasks),
        comparisons=tuple(_comparison(ladder, name, found) for name in ladder.config.comparisons),
        scores={
            f"{arm}/{seed}": str(scores.path.relative_to(ladder.config.out))
            for (arm, seed), scores in opened.items()
        },
    )


def commit_result(ladder: Ladder, result: LadderResult) -> Path:
    """Commit the result of a finished ladder; one that is there already is confirmed, or replaced by a newer one."""
    inputs = []
    for place in result.scores.values():
        directory = ladder.config.out / place
        fingerprint = read_manifest(directory).fingerprint
        inputs.append(InputEntry(kind=SCORES_KIND, uri=str(directory), fingerprint=fingerprint))
    settings = ladder.config.model_dump(mode="json", exclude={"out", "runs_dir", "at_once"})
    content = orjson.dumps(
        result.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    )
    key = hash_json([KIND, settings, [entry.fingerprint for entry in inputs], content.decode()])
    directory = ladder.directory
    if is_committed(directory) and read_manifest(directory).stats.get("key") == key:
        open_artefact(directory, kind=KIND, repair="delete it, and type the same command again")
        return directory
    spent = spent_on(ladder)
    stats = {"key": key, "wall_s": spent.wall_s, "cpu_s": spent.cpu_s, "cpu_s_by_arm": dict(spent.by_arm)}
    staging = staging_directory(directory, key)
    with storage_errors(staging):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        write_durably(staging / RESULT_FILE, content)
    commit(staging, directory, KIND, config=settings, inputs=inputs, stats=stats)
    return directory


def spent_on(ladder: Ladder) -> Spent:
    """The time of the finished stages."""
    stages, costs = stages_of(ladder), read_costs(ladder.work)
    own = [cost for name, cost in costs.items() if name in stages]
    by_arm = {}
    for arm in ladder.arms.values():
        names = (
            []
            if arm.is_random
            else [Pretraining(ladder, arm.name, seed).name for seed in ladder.config.seeds]
        )
        seconds = [costs[name].cpu_s for name in names if name in costs and not costs[name].exit_code]
        by_arm[arm.name] = sum(seconds) / len(seconds) if seconds else 0.0
    return Spent(
        stages=len(stages),
        finished=sum(place_of(stage) is not None for stage in stages.values()),
        wall_s=round(sum(cost.wall_s for cost in own), 1),
        cpu_s=round(sum(cost.cpu_s for cost in own), 1),
        by_arm=by_arm,
    )


def _pretrained(ladder: Ladder, arm: str) -> Pretrained:
    chosen = ladder.arms[arm]
    if chosen.is_random:
        return Pretrained(arm=arm, objective="", tokens=0, flops=0.0)
    stages = [Pretraining(ladder, arm, seed) for seed in ladder.config.seeds]
    ends = []
    for stage in stages:
        if (place := place_of(stage)) is not None:
            run = RunDirectory(place)
            # The metric that decides between a run's checkpoints, at every evaluation.
            values = [one.get(StoredSettings.of(run).metric) for one in read_metrics(run, LogKind.HELD_OUT)]
            finite = [one for one in values if isinstance(one, int | float) and math.isfinite(one)]
            ends += [(finite[0], finite[-1])] if finite else []
    return Pretrained(
        arm=arm,
        objective=chosen.pretrain.objective.kind,
        tokens=stages[0].tokens,
        flops=stages[0].flops,
        held_out=(sum(one for one, _ in ends) / len(ends), sum(one for _, one in ends) / len(ends))
        if ends
        else None,
    )


def _facts(ladder: Ladder, task: str, opened: Sequence[ScoresDirectory]) -> TaskFacts:
    config = ladder.arms[ladder.config.arms_of(task)[0]].finetune
    settings = config.tasks[task]
    score = next((each for scores in opened for each in scores.scores if each.task == task), None)
    return TaskFacts(
        task=task,
        metric=settings.metrics[0],
        num_train_examples=score.num_train_examples if score else 0,
        num_evaluation_examples=score.num_evaluation_examples if score else 0,
        floors=floors_of(config, task),
        ceiling=ladder.config.ceilings.get(task),
    )


def _comparison(
    ladder: Ladder, name: str, found: Mapping[tuple[str, str], Mapping[int, tuple[float, Sums]]]
) -> ComparisonResult:
    config = ladder.config.comparisons[name]
    tasks = [_task_result(config.arms, task, found) for task in config.tasks]
    return ComparisonResult(
        name=name,
        title=config.title,
        source=config.source,
        finding=config.finding,
        order=" < ".join(config.arms),
        note=config.note,
        tasks=tuple(task for task in tasks if task is not None),
    )


def _task_result(
    arms: Sequence[str],
    task: str,
    found: Mapping[tuple[str, str], Mapping[int, tuple[float, Sums]]],
) -> TaskResult | None:
    """All arms on a task, on the seeds that all have; None below two such seeds."""
    own = {arm: found.get((arm, task), {}) for arm in arms}
    seeds = sorted(set.intersection(*(set(values) for values in own.values())))
    if len(seeds) < 2:
        return None
    scores = [arm_score(arm, {seed: own[arm][seed][0] for seed in seeds}) for arm in arms]
    sums = {arm: [own[arm][seed][1] for seed in seeds] for arm in arms}
    pairs = [compare(lower, higher, sums) for lower, higher in itertools.pairwise(scores)]
    return TaskResult(task=task, scores=tuple(scores), pairs=tuple(pairs))
