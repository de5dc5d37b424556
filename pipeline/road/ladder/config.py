"""The configuration of a ladder: arms, tasks, and the comparisons that papers made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigProblem
from pipeline.config.loading import Config
from pipeline.config.problems import SettingsMisfit, did_you_mean
from pipeline.tune.config import NAME_PATTERN


class ArmConfig(Config):
    """One way to make a network before it is fine-tuned."""

    pretrain: Path
    """The pre-training configuration, relative to the ladder's file. Arms with the same one, and the same budget, share
    the runs."""
    initial: Literal["pretrained", "random"] = "pretrained"
    """`random` fine-tunes the same network from random weights: no pre-training."""
    same_compute_as: str | None = None
    """Another arm: this one reads as many tokens as cost as many model FLOPs as that one's; null reads `tokens`."""
    finetune: tuple[str, ...] = ()
    """Settings of the fine-tuning that differ in this arm, as on the command line: `training.lr=1e-3`."""


class ComparisonConfig(Config):
    """Arms that a paper compared."""

    title: str
    """The comparison in a few words, for tables."""
    order: str = Field(pattern=r"^[^<>]+(<[^<>]+)+$")
    """Names of arms in the order that the paper found: `none < masked` where `masked` scored higher."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Tasks that compare them."""
    source: str
    """The paper and its table."""
    finding: str
    """The paper's finding, with its figures."""
    note: str = ""
    """Differences from the paper."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, the paper's lowest scores first."""
        return tuple(name.strip() for name in self.order.split("<"))


class CeilingConfig(Config):
    """The score of a published network."""

    score: float = Field(ge=0, le=1)
    """In the task's main metric, as a share of 1."""
    source: str
    """The network, the paper and its table."""


class LadderConfig(Config):
    """Networks that were pre-trained in different ways, compared on tasks: does pre-training help, and which?"""

    name: str = Field(pattern=NAME_PATTERN)
    """Names the runs, the scores and the result."""
    out: Path = Path("ladder")
    """Directory of results; each lies in `NAME/` below it, beside the scores."""
    runs_dir: Path = Path("runs")
    """Directory of pre-training runs and of the tracking store."""
    data: tuple[Path, ...] = Field(min_length=1)
    """Data configurations, relative to the ladder's file, that the arms read; each is prepared once."""
    tokens: int = Field(gt=0)
    """Tokens of text that each pre-training reads, unless `same_compute_as` says otherwise."""
    seeds: tuple[int, ...] = Field(min_length=2)
    """Each arm is pre-trained once for each, and fine-tuned with the same seed."""
    at_once: int = Field(default=2, gt=0)
    """Stages at a time, each in a process with an equal share of the machine's cores."""
    arms: dict[str, ArmConfig] = Field(min_length=2)
    """The arms, by names that scores are reported under."""
    finetune: Path
    """The fine-tuning configuration with all tasks, relative to the ladder's file; its seeds are replaced."""
    comparisons: dict[str, ComparisonConfig] = Field(min_length=1)
    """The comparisons, by short names."""
    ceilings: dict[str, CeilingConfig] = Field(default_factory=dict)
    """By task, a score that shows how far there is to go."""

    @model_validator(mode="after")
    def _sound(self) -> LadderConfig:
        problems = []
        seeds = str(list(self.seeds))
        if repeated := [seed for seed, count in Counter(self.seeds).items() if count > 1]:
            problems.append(ConfigProblem("seeds", seeds, f"{repeated[0]} is there twice"))
        if min(self.seeds) < 0:
            problems.append(ConfigProblem("seeds", seeds, "must be 0 or more"))
        if problems := [*problems, *self._arm_problems(), *self._comparison_problems()]:
            raise SettingsMisfit(problems)
        return self

    @property
    def tasks(self) -> list[str]:
        """The tasks of all comparisons, in their order."""
        return list(dict.fromkeys(task for each in self.comparisons.values() for task in each.tasks))

    def arms_of(self, task: str) -> list[str]:
        """The arms that are fine-tuned on a task, in the order of the configuration."""
        wanted = {arm for each in self.comparisons.values() if task in each.tasks for arm in each.arms}
        return [arm for arm in self.arms if arm in wanted]

    def tasks_of(self, arm: str) -> list[str]:
        """The tasks that an arm is fine-tuned on, in the order of the comparisons."""
        named = [task for each in self.comparisons.values() if arm in each.arms for task in each.tasks]
        return list(dict.fromkeys(named))

    def _arm_problems(self) -> Iterator[ConfigProblem]:
        compared = {arm for each in self.comparisons.values() for arm in each.arms}
        for name, arm in self.arms.items():
            if name not in compared:
                yield ConfigProblem(f"arms.{name}", "", "is in no comparison; add it to one, or remove it")
            like = arm.same_compute_as
            if like is None:
                continue
            key = f"arms.{name}.same_compute_as"
            if like not in self.arms:
                yield _unknown(key, like, "arm", self.arms)
            elif self.arms[like].same_compute_as is not None:
                yield ConfigProblem(key, like, "must be an arm that reads `tokens`")

    def _comparison_problems(self) -> Iterator[ConfigProblem]:
        for name, comparison in self.comparisons.items():
            for arm in comparison.arms:
                if arm not in self.arms:
                    yield _unknown(f"comparisons.{name}.order", arm, "arm", self.arms)
            for field, named in (("order", comparison.arms), ("tasks", comparison.tasks)):
                if len(set(named)) != len(named):
                    yield ConfigProblem(
                        f"comparisons.{name}.{field}", str(list(named)), "must name each once"
                    )
        for task in self.ceilings:
            if task not in self.tasks:
                yield _unknown(f"ceilings.{task}", "", "task of a comparison", self.tasks)


def _unknown(key: str, value: str, kind: str, allowed: Iterable[str]) -> ConfigProblem:
    hint = did_you_mean(value or key.rpartition(".")[2], allowed)
    return ConfigProblem(key, value, f"is no {kind}{hint}; there are {', '.join(allowed)}")
