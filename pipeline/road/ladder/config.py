"""The configuration of a ladder: arms, tasks, and the comparisons that papers made; and with all that it names, a
ladder: which runs there are, how many tokens each reads, and how each is fine-tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, MismatchError
from cluster.artefacts.places import Place, absolute
from cluster.copies import is_there
from data_prep.config import PreparationConfig
from data_prep.layout import TOKENIZER_FILE, TOKENS
from pipeline.config.loading import Config, load_config, load_plain, validate
from pipeline.config.problems import SettingsMisfit, did_you_mean
from pipeline.config.shipped import find_beside
from pipeline.preparation import load_preparation, vocab_size_of
from pipeline.run.config import PretrainConfig
from pipeline.tasks.evaluation_sets import expand
from pipeline.tune.config import NAME_PATTERN, FinetuneConfig, ScratchConfig
from pipeline.tune.trials import check_network

LoadedT = TypeVar("LoadedT")


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
            for key, named in (("order", comparison.arms), ("tasks", comparison.tasks)):
                if len(set(named)) != len(named):
                    yield ConfigProblem(f"comparisons.{name}.{key}", str(list(named)), "must name each once")
        for task in self.ceilings:
            if task not in self.tasks:
                yield _unknown(f"ceilings.{task}", "", "task of a comparison", self.tasks)


def _unknown(key: str, value: str, kind: str, allowed: Iterable[str]) -> ConfigProblem:
    hint = did_you_mean(value or key.rpartition(".")[2], allowed)
    return ConfigProblem(key, value, f"is no {kind}{hint}; there are {', '.join(allowed)}")


@dataclass(frozen=True)
class Arm:
    """One arm with its configurations."""

    name: str
    settings: ArmConfig
    pretrain: PretrainConfig
    """The run, or with random weights the network, without seed and budget."""
    finetune: FinetuneConfig
    """The tasks of this arm, without seed and places."""

    @property
    def is_random(self) -> bool:
        """Whether nothing is pre-trained."""
        return self.settings.initial == "random"


@dataclass(frozen=True)
class Ladder:
    """A configuration with everything that it names, read and checked."""

    config: LadderConfig
    path: Path
    """Its file."""
    data: Mapping[Path, PreparationConfig]
    """By file, in order."""
    arms: Mapping[str, Arm]
    _flops: dict[tuple[Path, bool], float] = field(default_factory=dict)
    """By pre-training configuration, and whether its data was prepared."""
    places: dict[str, Path] = field(default_factory=dict)
    """Artefacts of finished stages by name, which are looked for once."""

    @property
    def directory(self) -> Path:
        """The directory of the committed result."""
        return self.config.out / self.config.name

    @property
    def work(self) -> Path:
        """Beside the result: settings and logs of the stages."""
        return self.config.out / f"{self.config.name}-stages"

    @property
    def scores(self) -> Path:
        """Beside the result: the scores of all arms, each of whose trainings saved its predictions."""
        return self.config.out / f"{self.config.name}-scores"

    def makers(self, arm: str) -> list[Path]:
        """The data configurations that make the token stores of an arm."""
        stores = {absolute(store.path) for store in self.arms[arm].pretrain.data.stores}
        return [file for file, data in self.data.items() if (data.out / TOKENS).resolve() in stores]

    def flops_per_token(self, arm: str) -> float:
        """Model FLOPs of pre-training, forward and backward; 0 without pre-training.

        Until the data of the arm is prepared, its vocabulary has the size that its configuration asks for.
        """
        chosen = self.arms[arm]
        if chosen.is_random:
            return 0.0
        is_prepared = all(is_there(store.path) for store in chosen.pretrain.data.stores)
        key = chosen.settings.pretrain, is_prepared
        if key not in self._flops:
            from pipeline.plan.duration import operations
            from pipeline.plan.network import make_network

            run = with_tokens(chosen.pretrain, self.config.tokens)
            vocab_size = next((vocab_size_of(self.data[file].tokenizer) for file in self.makers(arm)), None)
            flops = operations(run, make_network(run, on_cuda=False, vocab_size=vocab_size), run.num_steps)
            self._flops[key] = flops / run.tokens_before(run.num_steps)
        return self._flops[key]

    def tokens(self, arm: str) -> int:
        """Tokens of text that the pre-training of an arm reads; 0 without one."""
        if self.arms[arm].is_random:
            return 0
        like = self.arms[arm].settings.same_compute_as
        if like is None:
            return self.config.tokens
        return round(self.config.tokens * self.flops_per_token(like) / self.flops_per_token(arm))

    def size_of(self, arm: str) -> tuple[int, float]:
        """Tokens, of whole updates, and model FLOPs of the pre-training of an arm; zeros without one."""
        if self.arms[arm].is_random:
            return 0, 0.0
        run = self.run_of(arm, self.config.seeds[0])
        tokens = run.tokens_before(run.num_steps)
        return tokens, tokens * self.flops_per_token(arm)

    def run_name(self, arm: str, seed: int) -> str:
        """The name of the pre-training of an arm; arms that share it get the same."""
        like = self.arms[arm].settings.same_compute_as
        stem = self.arms[arm].settings.pretrain.stem + (f"-compute-of-{like}" if like else "")
        return f"{self.config.name}-{stem}-seed{seed}"

    def run_of(self, arm: str, seed: int) -> PretrainConfig:
        """The pre-training of an arm."""
        named = {"name": self.run_name(arm, seed), "seed": seed}
        return with_tokens(self.arms[arm].pretrain.model_copy(update=named), self.tokens(arm))

    def finetuning_of(self, arm: str, seed: int) -> FinetuneConfig:
        """The fine-tuning of an arm with a seed."""
        chosen = self.arms[arm]
        scratch = None
        if chosen.is_random:
            tokenizer = chosen.pretrain.data.stores[0].path / TOKENIZER_FILE
            scratch = ScratchConfig(model=chosen.pretrain.model, tokenizer=tokenizer)
        return chosen.finetune.model_copy(
            update={"name": f"{arm}-seed{seed}", "out": self.scores, "seeds": (seed,), "scratch": scratch}
        )


def with_tokens(config: PretrainConfig, tokens: int) -> PretrainConfig:
    """A run that ends after so many tokens of text, whatever the configuration says."""
    plain = config.model_dump(mode="json") | {"steps": None, "budget": {"tokens": tokens}}
    return validate(PretrainConfig, plain, config.name)


def load_ladder(path: Path, overrides: list[str]) -> Ladder:
    """Read a ladder and all configurations that it names.

    Raises:
        MissingInputError: a file does not exist.
        ConfigError: every problem of every file at once.
    """
    config = load_config(LadderConfig, path, overrides)
    problems: list[ConfigProblem] = []

    def read(key: str, load: Callable[[Path], LoadedT], file: Path) -> LoadedT | None:
        try:
            return load(find_beside(path.parent, file))
        except ClozeError as error:
            problems.append(ConfigProblem(key, str(file), str(error)))
            return None

    data = {
        file: found
        for number, file in enumerate(config.data)
        if (found := read(f"data.{number}", load_preparation, file)) is not None
    }
    shared = {"runs_dir": str(config.runs_dir), "experiment": config.name}
    arms: dict[str, Arm] = {}
    for name, settings in config.arms.items():
        key, tasks = f"arms.{name}", config.tasks_of(name)
        run = read(f"{key}.pretrain", partial(_pretraining, config, shared), settings.pretrain)
        tuned = read(f"{key}.finetune", partial(_finetuning, settings, tasks, shared), config.finetune)
        if run is not None and tuned is not None:
            arms[name] = Arm(name, settings, run, tuned)
    problems += _misfits(config, data, arms)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ConfigError(f"{path}: {count} in the ladder:", problems=tuple(problems))
    return Ladder(config, path, data, arms)


def _pretraining(config: LadderConfig, shared: dict[str, str], file: Path) -> PretrainConfig:
    plain = load_plain(PretrainConfig, file) | shared
    # The runs of a ladder are as long as its budget says, one worker each.
    plain |= {"steps": None, "budget": {"tokens": config.tokens}}
    plain["cluster"] = dict(plain.get("cluster") or {}) | {"workers": 1}
    return validate(PretrainConfig, plain, str(file))


def _finetuning(arm: ArmConfig, tasks: list[str], shared: dict[str, str], file: Path) -> FinetuneConfig:
    plain = load_plain(FinetuneConfig, file, list(arm.finetune)) | shared
    known = plain.get("tasks") or {}
    if unknown := [task for task in tasks if task not in known]:
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"It has no task {', '.join(unknown)}{hint}; there are {', '.join(known)}.")
    plain["tasks"] = {task: known[task] for task in tasks}
    return validate(FinetuneConfig, plain, str(file))


def _misfits(
    config: LadderConfig, data: Mapping[Path, PreparationConfig], arms: Mapping[str, Arm]
) -> list[ConfigProblem]:
    """Stores that no data configuration makes, and evaluation texts that they may hold."""
    if len(data) < len(config.data):
        return []
    problems = []
    made: dict[Place, PreparationConfig] = {(each.out / TOKENS).resolve(): each for each in data.values()}
    for name, arm in arms.items():
        try:
            check_network(arm.finetune, arm.pretrain.model)
        except MismatchError as error:
            problems.append(ConfigProblem(f"arms.{name}", "", error.problem))
        for task in arm.finetune.tasks:
            if arm.finetune.training_of(task).distill is not None:
                # Scores name the teacher's bytes, and not its reference.
                message = f"the task {task} has a teacher, which a ladder does not compare; set training.distill=null"
                problems.append(ConfigProblem(f"arms.{name}.finetune", "", message))
        for store in arm.pretrain.data.stores:
            source = made.get(absolute(store.path))
            if source is None:
                allowed = ", ".join(str(each.out / TOKENS) for each in data.values())
                message = f"reads {store.path}, which no configuration of `data` makes; they make {allowed}"
                problems.append(ConfigProblem(f"arms.{name}.pretrain", str(arm.settings.pretrain), message))
                continue
            kept_out = set(expand(source.decontaminate.tasks))
            for task, settings in arm.finetune.tasks.items():
                if missing := sorted({each.name for each in settings.sets()} - kept_out):
                    message = f"must name {', '.join(missing)}: arm {name} is scored on {task}"
                    problems.append(ConfigProblem("data", f"decontaminate of {source.name}", message))
    return list(dict.fromkeys(problems))
