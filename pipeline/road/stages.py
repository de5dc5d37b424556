"""The stages of a road, loaded and checked against each other before the first one starts.

A road takes days, and a misspelt path of its last stage is found in seconds. What can be known is checked: every
configuration, the files of sources and of tasks, that each token store of the run is there or is made, and that the
network can be trained on the tasks. Only lengths and vocabulary wait for the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem
from cluster.artefacts.places import absolute
from cluster.artefacts.storage import is_committed
from cluster.copies import is_on_this_machine, is_there
from data_prep.config import PreparationConfig
from data_prep.layout import TOKENS
from data_prep.plan import plan_preparation
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import Config, flatten, load_config
from pipeline.preparation import load_preparation
from pipeline.pretrain.launch import find_same_run, is_finished
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import GuardsConfig
from pipeline.tasks.evaluation_sets import evaluation_texts
from pipeline.tune.config import NAME_PATTERN, FinetuneConfig
from pipeline.tune.trials import check_network, num_trainings, scores_directory


class StageConfig(Config):
    """One stage: a configuration of its verb, with settings that win over it."""

    config: Path
    """YAML file, or a name of `cloze configs list`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that win over the file, nested or by dotted keys: `{steps: 500, optimizer.lr: 1e-3}`."""

    @property
    def overrides(self) -> list[str]:
        """The settings as `a.b=c`."""
        import orjson

        return [f"{key}={orjson.dumps(value).decode()}" for key, value in flatten(self.settings).items()]


class RoadConfig(Config):
    """One road, from source files to scores."""

    name: str = Field(pattern=NAME_PATTERN)
    """Names the report."""
    out: Path = Path("roads")
    """Directory of reports; each lies in `NAME` below it."""
    data: tuple[StageConfig, ...] = ()
    """Preparations, as for `cloze data prepare`; none where the token stores are there."""
    pretrain: StageConfig
    """The run, as for `cloze pretrain`."""
    checkpoint: Literal["best", "latest"] = "latest"
    """The checkpoint of the run that is fine-tuned."""
    finetune: tuple[StageConfig, ...] = Field(default=(), max_length=100)
    """Fine-tunings of the checkpoint, as for `cloze finetune`."""

    @property
    def guards(self) -> GuardsConfig:
        """The guards of the run, whose `grace_s` is the time that a stop may take."""
        return load_config(PretrainConfig, self.pretrain.config, self.pretrain.overrides).guards


LoadedT = TypeVar("LoadedT")


@dataclass(frozen=True)
class Stages:
    """The configurations of all stages."""

    data: tuple[PreparationConfig, ...]
    pretrain: PretrainConfig
    finetune: tuple[FinetuneConfig, ...]


def load_stages(road: RoadConfig, made: Sequence[Path] = ()) -> Stages:
    """Load the configurations of all stages and check what can be known before anything is made.

    Args:
        made: directories that the road makes besides those of its preparations.

    Raises:
        ClozeError: the only thing that is wrong.
        ConfigError: all that is wrong, by the key of its stage.
    """
    problems: dict[str, ClozeError] = {}

    def attempt(key: str, make: Callable[[], LoadedT]) -> LoadedT | None:
        try:
            return make()
        except ClozeError as error:
            problems[key] = error
            return None

    data = [
        attempt(f"data.{number}", partial(load_preparation, stage.config, stage.overrides))
        for number, stage in enumerate(road.data)
    ]
    run = road.pretrain
    pretrain = attempt("pretrain", partial(load_config, PretrainConfig, run.config, run.overrides))
    finetune = [
        attempt(f"finetune.{number}", partial(load_config, FinetuneConfig, stage.config, stage.overrides))
        for number, stage in enumerate(road.finetune)
    ]
    made = [*(one.out for one in data if one is not None), *made]
    if pretrain is not None and None not in data:
        attempt("pretrain", partial(_check_stores, pretrain, made))
    for number, one in enumerate(finetune):
        if one is not None:
            attempt(f"finetune.{number}", partial(_check_tasks, one, pretrain, made))
    if len(problems) == 1:
        raise next(iter(problems.values()))
    if problems:
        raise ConfigError(
            f"{len(problems)} stages of the road {road.name} cannot be started:",
            problems=tuple(ConfigProblem(key, "", str(error)) for key, error in problems.items()),
            next_step="correct the configurations; `--dry-run` checks them again",
        )
    assert pretrain is not None, "its problem was raised"
    return Stages(tuple(one for one in data if one), pretrain, tuple(one for one in finetune if one))


def _check_stores(run: PretrainConfig, made: Sequence[Path]) -> None:
    """Refuse a run whose token stores are neither there nor made by a preparation of the road."""
    outs = {place.resolve() for place in (*made, *(out / TOKENS for out in made))}
    absent = [
        store.path
        for store in run.data.stores
        if absolute(store.path) not in outs and not is_there(store.path)
    ]
    if absent:
        makes = ", ".join(str(out / TOKENS) for out in made) or "none"
        raise ConfigError(
            f"The run reads {', '.join(map(str, absent))}, which is not there and which no preparation of the road"
            f" makes; they make: {makes}.",
            next_step="name the store with pretrain.settings.data.stores=[{path: ...}], or add its preparation to"
            " `data`",
        )


def _check_tasks(config: FinetuneConfig, run: PretrainConfig | None, made: Sequence[Path]) -> None:
    """Read the files of all tasks, but those that a preparation of the road makes, and refuse tasks that the network
    cannot be trained on."""
    if run is not None:
        check_network(config, run.model)
    for task in config.tasks.values():
        places = [value.resolve() for value in dict(task).values() if isinstance(value, Path)]
        if not any(place.is_relative_to(out.resolve()) for place in places for out in made):
            task.load()


def plan_road(road: RoadConfig, stages: Stages) -> list[dict[str, Any]]:
    """A row for every stage: `stage`, `name`, `state` and `what` it does, in a few words; nothing is started."""
    rows = []
    for config in stages.data:
        plan = plan_preparation(config, evaluation_texts)
        states = set(plan["stages"].values())
        state = "finished" if states == {"committed"} else "absent" if states == {"absent"} else "started"
        what = f"{plan['files']:,} files, {plan['size_bytes']:,} bytes, {plan['shards']:,} shards -> {config.out}"
        rows.append({"stage": "prepare", "name": config.name, "state": state, "what": what})
    run = stages.pretrain
    is_ready = all(is_on_this_machine(store.path) for store in run.data.stores)
    earlier = find_same_run(run) if is_ready else None
    state = "absent" if earlier is None else "finished" if is_finished(earlier) else "started"
    what = (
        f"{run.objective.kind}, {run.num_steps:,} steps, {run.tokens_before(run.num_steps):,} tokens, "
        f"{run.cluster.workers} workers" + (f" -> {earlier.path}" if earlier else "")
    )
    rows.append({"stage": "pretrain", "name": run.name, "state": state, "what": what})
    model = (
        resolve_model(f"{earlier.path}@{road.checkpoint}", run.runs_dir)
        if earlier and state == "finished"
        else None
    )
    for config in stages.finetune:
        done = model is not None and is_committed(scores_directory(config, model))
        what = f"{', '.join(config.tasks)}: {num_trainings(config)} trainings -> {config.out / config.name}"
        state = "finished" if done else "absent"
        rows.append({"stage": "finetune", "name": config.name, "state": state, "what": what})
    return rows
