"""The result of a ladder: every comparison on every task, as an artefact whose inputs are the scores.

Scores of arms are compared with the order that a paper found, and with scores without a network on the same examples:
the most frequent label, and words alone: of texts with labels a logistic regression on counts of words and pairs of
neighbours (scikit-learn's CountVectorizer and LogisticRegression with their defaults, 1,000 iterations); of words with
tags, each word's most frequent tag.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest, write_durably
from cluster.artefacts.storage import commit, is_committed, open_artefact, staged
from pipeline.road.ladder.config import Ladder
from pipeline.road.ladder.stages import Stage, finetuning, place_of, pretraining, seconds_of, stages_of
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.report.bootstrap import CONFIDENCE, Sums, resampled, sums_of
from pipeline.tune.scores import KIND as SCORES_KIND
from pipeline.tune.scores import ScoresDirectory
from pipeline.tune.trials import sample_examples

Verdict = Literal["same order", "opposite", "within the spread"]
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class ArmScore:
    """An arm on a task."""

    arm: str
    values: dict[int, float]
    """The task's main metric by seed, as a share of 1."""
    mean: float
    std: float
    """Sample standard deviation over seeds (n - 1)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms on a task, the lower one of the paper first."""

    lower: str
    higher: str
    """The arm that scored higher in the paper."""
    difference: float
    """Mean of `higher` less mean of `lower`, as a share of 1."""
    low: float
    high: float
    """The 95% interval of the difference for other evaluation examples of the same kind: both arms see the same
    resamples."""
    spread: float
    """Standard deviation of a difference of two seeds: the root of the sum of both variances."""

    @property
    def verdict(self) -> Verdict:
        """A difference counts where it is larger than the seeds' spread and its interval leaves 0 out."""
        if abs(self.difference) <= self.spread or self.low <= 0 <= self.high:
            return "within the spread"
        return "same order" if self.difference > 0 else "opposite"


def arm_score(arm: str, values: Mapping[int, float]) -> ArmScore:
    """The mean and the spread of at least two seeds."""
    found = list(values.values())
    return ArmScore(arm=arm, values=dict(values), mean=statistics.fmean(found), std=statistics.stdev(found))


def compare(lower: ArmScore, higher: ArmScore, sums: Mapping[str, Sequence[Sums]]) -> Pair:
    """The difference between two arms, with its paired bootstrap interval.

    Args:
        sums: by arm, for each seed what the evaluation examples add to the metric.
    """
    differences = resampled(sums[higher.arm]) - resampled(sums[lower.arm])
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Pair(
        lower=lower.arm,
        higher=higher.arm,
        difference=higher.mean - lower.mean,
        low=low,
        high=high,
        spread=math.hypot(lower.std, higher.std),
    )


def sums_of_task(opened: ScoresDirectory, task: str) -> tuple[float, Sums]:
    """The score of a task, and what its evaluation examples add to it, from the saved predictions.

    Raises:
        ValueError: the metric is no function of sums, or the predictions have another score than was saved.
    """
    score = next(each for each in opened.scores if each.task == task)
    sums = sums_of(score.main_metric, opened.lines(score.trial), opened.labels.get(task, ()))
    if sums is None:
        raise ValueError(f"{score.main_metric} of {task} is no sum over examples")
    found = float(sums.value(sums.columns.sum(0)))
    if not abs(found - score.value) < _SAME:
        raise ValueError(f"the predictions of {task} in {opened.path} score {found}, not {score.value}")
    return score.value, sums


MAJORITY = "most frequent label"
WORDS = "words alone"


def floors_of(config: FinetuneConfig, task: str) -> dict[str, float]:
    """The main metric of predictions without a network by name, trained on the examples that fine-tuning reads.

    Raises:
        ConfigError: a ladder has no floor for tasks of this form.
    """
    settings: Any = config.tasks[task]
    if settings.form not in _PREDICT:
        raise ConfigError(
            f"The task {task} is of the form {settings.form}; ladders compare {' and '.join(_PREDICT)}.",
            next_step=f"leave {task} out of the comparisons",
        )
    data = settings.load()
    used = sample_examples(len(data.train), config.training_of(task).max_train_examples)
    train = [data.train[number] for number in used]
    predictions = _PREDICT[settings.form](train, data.evaluation, len(data.labels))
    metric = settings.metrics[0]
    return {name: settings.measure(data.evaluation, found)[metric] for name, found in predictions.items()}


def _of_texts(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, np.ndarray]:
    """Scores of labels of each predictor, [examples, labels]."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    labels = [int(each.label) for each in train]
    counts = CountVectorizer(ngram_range=(1, 2))
    columns = counts.fit_transform(["\n".join(each.texts) for each in train])
    model = LogisticRegression(max_iter=1000).fit(columns, labels)
    guessed = model.predict(counts.transform(["\n".join(each.texts) for each in evaluation]))
    most = np.full(len(evaluation), np.bincount(labels).argmax())
    return {MAJORITY: np.eye(num_labels)[most], WORDS: np.eye(num_labels)[guessed]}


def _of_tags(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, list[list[str]]]:
    """Tags of every word from each predictor."""
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word.lower(), Counter())[tag] += 1
    # The first in the alphabet among equally frequent tags.
    most = _most(sum(by_word.values(), Counter()))
    best = {word: _most(tags) for word, tags in by_word.items()}
    return {
        MAJORITY: [[most] * len(each.words) for each in evaluation],
        WORDS: [[best.get(word.lower(), most) for word in each.words] for each in evaluation],
    }


def _most(tags: Counter[str]) -> str:
    return min(tags, key=lambda tag: (-tags[tag], tag))


_PREDICT: Mapping[str, Callable[[Sequence[Any], Sequence[Any], int], Mapping[str, Any]]] = {
    "classification": _of_texts,
    "tags": _of_tags,
}
"""By form of task."""


KIND = "ladder"
RESULT_FILE = "ladder.json"


def collect(ladder: Ladder) -> dict[str, Any]:
    """The result of a finished ladder.

    Returns:
        `name` and `seeds`; of every one of `arms` what `_pretrained` gives; of every one of `tasks` its main `metric`,
        the numbers of examples, `floors`, scores without a network by name, and the `ceiling`, if it has one; of every
        one of `comparisons` what its paper says, and by task the `scores` of its arms in the paper's order, the lowest
        first, and the `pairs` of neighbours; and `scores`, by `ARM/SEED` the directory of the artefact below the
        ladder's `out`.

    Raises:
        CorruptArtefactError: scores are damaged.
        ValueError: predictions have another score than was saved.
    """
    config = ladder.config
    opened = {
        (arm, seed): ScoresDirectory.open(_place(ladder, finetuning(ladder, arm, seed)))
        for arm in ladder.arms
        for seed in config.seeds
    }
    found: dict[tuple[str, str], dict[int, tuple[float, Sums]]] = {}
    for (arm, seed), scores in opened.items():
        for task in ladder.arms[arm].finetune.tasks:
            found.setdefault((arm, task), {})[seed] = sums_of_task(scores, task)
    return {
        "name": config.name,
        "seeds": config.seeds,
        "arms": [_pretrained(ladder, arm) for arm in ladder.arms],
        "tasks": [_facts(ladder, task, list(opened.values())) for task in config.tasks],
        "comparisons": [
            {
                "name": name,
                **one.model_dump(include={"title", "source", "finding"}),
                "order": " < ".join(one.arms),
                "note": one.note,
                "tasks": [_compared(one.arms, task, found) for task in one.tasks],
            }
            for name, one in config.comparisons.items()
        ],
        "scores": {
            f"{arm}/{seed}": str(scores.path.relative_to(config.out))
            for (arm, seed), scores in opened.items()
        },
    }


def commit_result(ladder: Ladder, result: Mapping[str, Any]) -> Path:
    """Commit the result of a finished ladder; one that is there already is confirmed, or replaced by a newer one."""
    inputs = []
    for place in result["scores"].values():
        directory = ladder.config.out / place
        fingerprint = read_manifest(directory).fingerprint
        inputs.append(InputEntry(kind=SCORES_KIND, uri=str(directory), fingerprint=fingerprint))
    settings = ladder.config.model_dump(mode="json", exclude={"out", "runs_dir", "at_once"})
    content = orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    key = hash_json([KIND, settings, [entry.fingerprint for entry in inputs], content.decode()])
    directory = ladder.directory
    if is_committed(directory) and read_manifest(directory).stats.get("key") == key:
        open_artefact(directory, kind=KIND, repair="delete it, and type the same command again")
        return directory
    spent = spent_on(ladder)
    stats = {"key": key, "seconds": spent["total_s"], "seconds_by_arm": spent["by_arm"]}
    with staged(directory, key) as staging:
        write_durably(staging / RESULT_FILE, content)
        commit(staging, directory, KIND, config=settings, inputs=inputs, stats=stats)
    return directory


def spent_on(ladder: Ladder) -> dict[str, Any]:
    """Seconds by the clock of the trainings of a finished ladder: `total_s` of all of them, some of which ran side by
    side, and `by_arm` of the pre-training of an arm, mean over seeds; 0 without one."""
    seconds = {name: seconds_of(ladder, stage) or 0.0 for name, stage in stages_of(ladder).items()}
    by_arm = {
        arm.name: 0.0
        if arm.is_random
        else statistics.fmean(
            seconds[pretraining(ladder, arm.name, seed).name] for seed in ladder.config.seeds
        )
        for arm in ladder.arms.values()
    }
    return {"total_s": round(sum(seconds.values()), 1), "by_arm": by_arm}


def _place(ladder: Ladder, stage: Stage) -> Path:
    place = place_of(ladder, stage)
    assert place is not None, f"{stage.name} is finished"
    return place


def _pretrained(ladder: Ladder, arm: str) -> dict[str, Any]:
    """The pre-training of an arm, per seed: its objective, empty without one, tokens of text and model FLOPs; and
    `held_out`, the loss on held-out samples before the first update and after the last one (or the metric that the run
    decides by), mean over the seeds: a pre-training that learned nothing shows here before it shows in scores. None
    without a run."""
    chosen, ends = ladder.arms[arm], []
    for seed in () if chosen.is_random else ladder.config.seeds:
        run = RunDirectory(_place(ladder, pretraining(ladder, arm, seed)))
        # The metric that decides between a run's checkpoints, at every evaluation.
        values = [one.get(StoredSettings.of(run).metric) for one in read_metrics(run, LogKind.HELD_OUT)]
        finite = [one for one in values if isinstance(one, int | float) and math.isfinite(one)]
        ends += [(finite[0], finite[-1])] if finite else []
    tokens, flops = ladder.size_of(arm)
    return {
        "arm": arm,
        "objective": "" if chosen.is_random else chosen.pretrain.objective.kind,
        "tokens": tokens,
        "flops": flops,
        "held_out": [statistics.fmean(side) for side in zip(*ends, strict=True)] if ends else None,
    }


def _facts(ladder: Ladder, task: str, opened: Sequence[ScoresDirectory]) -> dict[str, Any]:
    config = ladder.arms[ladder.config.arms_of(task)[0]].finetune
    score = next(each for scores in opened for each in scores.scores if each.task == task)
    ceiling = ladder.config.ceilings.get(task)
    return {
        "task": task,
        "metric": config.tasks[task].metrics[0],
        "num_train_examples": score.num_train_examples,
        "num_evaluation_examples": score.num_evaluation_examples,
        "floors": floors_of(config, task),
        "ceiling": None if ceiling is None else ceiling.model_dump(),
    }


def _compared(
    arms: Sequence[str], task: str, found: Mapping[tuple[str, str], Mapping[int, tuple[float, Sums]]]
) -> dict[str, Any]:
    scores = [arm_score(arm, {seed: score for seed, (score, _) in found[arm, task].items()}) for arm in arms]
    sums = {arm: [own for _, own in found[arm, task].values()] for arm in arms}
    pairs = [compare(lower, higher, sums) for lower, higher in itertools.pairwise(scores)]
    return {"task": task, "scores": scores, "pairs": pairs}
