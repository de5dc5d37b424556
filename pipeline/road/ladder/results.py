"""The result of a ladder: every comparison on every task, as an artefact whose inputs are the scores."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest, write_durably
from cluster.artefacts.storage import (
    commit,
    is_committed,
    open_artefact,
    staged,
)
from pipeline.road.ladder.arms import Ladder
from pipeline.road.ladder.comparing import ArmScore, Frozen, Pair, arm_score, compare, floors_of, sums_of_task
from pipeline.road.ladder.config import CeilingConfig
from pipeline.road.ladder.stages import Stage, finetuning, place_of, pretraining, seconds_of, stages_of
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.tune.report.bootstrap import Sums
from pipeline.tune.scores import KIND as SCORES_KIND
from pipeline.tune.scores import ScoresDirectory

KIND = "ladder"
RESULT_FILE = "ladder.json"


class Pretrained(Frozen):
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
    by), mean over the seeds: a pre-training that learned nothing shows here before it shows in scores. None without a
    run."""


class TaskResult(Frozen):
    """A comparison on one task."""

    task: str
    scores: tuple[ArmScore, ...]
    """In the paper's order, the lowest first."""
    pairs: tuple[Pair, ...]
    """Neighbours in that order."""


class ComparisonResult(Frozen):
    """A comparison on all of its tasks."""

    name: str
    title: str
    source: str
    finding: str
    order: str
    """Order of the arms in the paper, such as `none < masked`."""
    note: str
    tasks: tuple[TaskResult, ...]


class TaskFacts(Frozen):
    """Figures that surround the scores of a task."""

    task: str
    metric: str
    num_train_examples: int
    num_evaluation_examples: int
    floors: dict[str, float]
    """Scores without a network, by name."""
    ceiling: CeilingConfig | None


class LadderResult(Frozen):
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
    """Seconds by the clock of the trainings of a finished ladder."""

    total_s: float
    """Sum over all trainings; some ran side by side."""
    by_arm: Mapping[str, float]
    """Seconds of the pre-training of an arm, mean over seeds; 0 without one."""


def collect(ladder: Ladder) -> LadderResult:
    """The result of a finished ladder.

    Raises:
        CorruptArtefactError: scores are damaged.
        ValueError: predictions have another score than was saved.
    """
    opened = {
        (arm, seed): ScoresDirectory.open(_place(ladder, finetuning(ladder, arm, seed)))
        for arm in ladder.arms
        for seed in ladder.config.seeds
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
    stats = {"key": key, "seconds": spent.total_s, "seconds_by_arm": dict(spent.by_arm)}
    with staged(directory, key) as staging:
        write_durably(staging / RESULT_FILE, content)
        commit(staging, directory, KIND, config=settings, inputs=inputs, stats=stats)
    return directory


def spent_on(ladder: Ladder) -> Spent:
    """The time of the trainings of a finished ladder."""
    seconds = {name: seconds_of(ladder, stage) or 0.0 for name, stage in stages_of(ladder).items()}
    seeds = ladder.config.seeds
    by_arm = {
        arm.name: 0.0
        if arm.is_random
        else statistics.fmean(seconds[pretraining(ladder, arm.name, seed).name] for seed in seeds)
        for arm in ladder.arms.values()
    }
    return Spent(round(sum(seconds.values()), 1), by_arm)


def _place(ladder: Ladder, stage: Stage) -> Path:
    place = place_of(ladder, stage)
    assert place is not None, f"{stage.name} is finished"
    return place


def _pretrained(ladder: Ladder, arm: str) -> Pretrained:
    chosen = ladder.arms[arm]
    if chosen.is_random:
        return Pretrained(arm=arm, objective="", tokens=0, flops=0.0)
    ends = []
    for seed in ladder.config.seeds:
        run = RunDirectory(_place(ladder, pretraining(ladder, arm, seed)))
        # The metric that decides between a run's checkpoints, at every evaluation.
        values = [one.get(StoredSettings.of(run).metric) for one in read_metrics(run, LogKind.HELD_OUT)]
        finite = [one for one in values if isinstance(one, int | float) and math.isfinite(one)]
        ends += [(finite[0], finite[-1])] if finite else []
    tokens, flops = ladder.size_of(arm)
    held_out = (
        (statistics.fmean(one for one, _ in ends), statistics.fmean(one for _, one in ends)) if ends else None
    )
    return Pretrained(
        arm=arm, objective=chosen.pretrain.objective.kind, tokens=tokens, flops=flops, held_out=held_out
    )


def _facts(ladder: Ladder, task: str, opened: Sequence[ScoresDirectory]) -> TaskFacts:
    config = ladder.arms[ladder.config.arms_of(task)[0]].finetune
    settings = config.tasks[task]
    score = next(each for scores in opened for each in scores.scores if each.task == task)
    return TaskFacts(
        task=task,
        metric=settings.metrics[0],
        num_train_examples=score.num_train_examples,
        num_evaluation_examples=score.num_evaluation_examples,
        floors=floors_of(config, task),
        ceiling=ladder.config.ceilings.get(task),
    )


def _comparison(
    ladder: Ladder, name: str, found: Mapping[tuple[str, str], Mapping[int, tuple[float, Sums]]]
) -> ComparisonResult:
    config = ladder.config.comparisons[name]
    return ComparisonResult(
        name=name,
        title=config.title,
        source=config.source,
        finding=config.finding,
        order=" < ".join(config.arms),
        note=config.note,
        tasks=tuple(_task_result(config.arms, task, found) for task in config.tasks),
    )


def _task_result(
    arms: Sequence[str],
    task: str,
    found: Mapping[tuple[str, str], Mapping[int, tuple[float, Sums]]],
) -> TaskResult:
    scores = [arm_score(arm, {seed: score for seed, (score, _) in found[arm, task].items()}) for arm in arms]
    sums = {arm: [own for _, own in found[arm, task].values()] for arm in arms}
    pairs = [compare(lower, higher, sums) for lower, higher in itertools.pairwise(scores)]
    return TaskResult(task=task, scores=tuple(scores), pairs=tuple(pairs))
