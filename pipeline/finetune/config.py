"""The configuration of a fine-tuning run: tasks, seeds, and where the scores go."""

from __future__ import annotations

import re
from copy import copy
from pathlib import Path
from typing import Annotated, Union

from pydantic import Field, create_model, model_validator

from pipeline.config.loading import Config
from pipeline.config.networks import NetworkChoice
from pipeline.finetune.settings import Precision, TrainingConfig
from pipeline.finetune.task import Tasks
from pipeline.finetune.tasks import TaskChoice

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names that are safe as names of files."""


class ScratchConfig(Config):
    """A network without a checkpoint, for scores of random weights alone."""

    model: NetworkChoice
    """The network; `vocab_size` is taken from the tokenizer unless given."""
    tokenizer: Path
    """A `tokenizer.json` with tokens to begin, end and pad a sequence."""


class FinetuneConfig(Config):
    """One fine-tuning run: every task is trained from the checkpoint once per seed."""

    name: str = Field(default="finetune", pattern=NAME_PATTERN)
    """Names the scores and the MLflow runs."""
    out: Path = Path("finetuned")
    """Directory of score artefacts; each lies in `NAME/CHECKPOINT` below it."""
    runs_dir: Path = Path("runs")
    """Directory of pre-training runs and of the tracking store."""
    experiment: str = "finetune"
    """MLflow experiment."""
    tasks: dict[str, TaskChoice] = Field(min_length=1)
    """The tasks, by names that scores are reported under."""
    training: TrainingConfig = TrainingConfig()
    """Settings of each training; a task may override them in its own `training`."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """One training per task for each; decides the new head, the order of examples and dropout."""
    compare_random: bool = False
    """Whether every training is repeated from random weights, to see what pre-training gained."""
    scratch: ScratchConfig | None = None
    """The network to train when no checkpoint is given."""
    save_models: bool = False
    """Whether the fine-tuned weights and the tokenizer are kept with the scores, as `cloze export` needs them."""
    precision: Precision = "fp32"
    """Number format of the forward and backward pass; weights and optimizer stay in fp32."""
    num_threads: int | None = Field(default=None, gt=0)
    """CPU threads of a process; null leaves it to torch and OMP_NUM_THREADS."""

    @model_validator(mode="after")
    def _sound(self) -> FinetuneConfig:
        problems = [
            f"task name {name!r} must start with a letter or digit and hold only these, '.', '_' and '-'"
            for name in self.tasks
            if not re.match(NAME_PATTERN, name)
        ]
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            problems.append(f"seeds {list(self.seeds)} must be different and not negative")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def training_of(self, task: str) -> TrainingConfig:
        """The settings a task is trained with."""
        return self.tasks[task].training.applied_to(self.training)


def with_tasks(tasks: Tasks) -> type[FinetuneConfig]:
    """The configuration of fine-tuning runs on these kinds of tasks instead of those on published data alone."""
    choice = Annotated[Union[tuple(tasks.values())], Field(discriminator="kind")]  # noqa: UP007
    field = copy(FinetuneConfig.model_fields["tasks"])
    return create_model(
        FinetuneConfig.__name__,
        __base__=FinetuneConfig,
        __doc__=FinetuneConfig.__doc__,
        tasks=(dict[str, choice], field),  # pyright: ignore[reportInvalidTypeForm]
    )
