"""The configuration of a fine-tuning run: tasks, seeds, and where the scores go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field, model_validator

from cluster.artefacts.places import PlaceSetting, UriSetting
from pipeline.config.loading import Config
from pipeline.run.shared_settings import NetworkChoice, WandbConfig, ZeroConfig
from pipeline.tasks import TaskChoice
from pipeline.tasks.settings import Precision, Search, TrainingConfig

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names that are safe as names of files."""


class ScratchConfig(Config):
    """A network without a checkpoint, for scores of random weights alone."""

    model: NetworkChoice
    """The network; `vocab_size` is taken from the tokenizer unless given."""
    tokenizer: PlaceSetting
    """A `tokenizer.json` with tokens to begin, end and pad a sequence, or the fsspec URI of an artefact with one."""


class FinetuneConfig(Config):
    """One fine-tuning run: every task is trained from the checkpoint once per seed."""

    name: str = Field(default="finetune", pattern=NAME_PATTERN)
    """Names the scores and the MLflow runs."""
    out: Path = Path("finetuned")
    """Directory of score artefacts; each lies in `NAME/CHECKPOINT` below it."""
    publish: UriSetting | None = None
    """An fsspec URI, such as s3://bucket/finetuned, that finished scores are copied to, in `NAME/CHECKPOINT` below it;
    null copies nothing. Holds no credentials."""
    runs_dir: Path = Path("runs")
    """Directory of pre-training runs and of the tracking store."""
    experiment: str = "finetune"
    """MLflow experiment."""
    wandb: WandbConfig | None = None
    """A copy of each training in Weights & Biases, whose key is in WANDB_API_KEY or ~/.netrc; null makes none."""
    tasks: dict[str, TaskChoice] = Field(min_length=1)
    """The tasks, by names that scores are reported under."""
    training: TrainingConfig = TrainingConfig()
    """Settings of each training; a task may override them in its own `training`."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """One training per task for each; decides the new head, the order of examples and dropout."""
    search: Search = Search()
    """Training settings to try; of each task, the choice with the best median over seeds is reported."""
    compare_random: bool = False
    """Whether every training is repeated from random weights, to see what pre-training gained."""
    scratch: ScratchConfig | None = None
    """The network to train when no checkpoint is given."""
    save_models: bool = False
    """Whether the fine-tuned weights and the tokenizer are kept with the scores, as `cloze export` needs them."""
    precision: Precision = "fp32"
    """Number format of the forward and backward pass; weights and optimizer stay in fp32."""
    zero: ZeroConfig | None = None
    """State that DeepSpeed ZeRO shards among the processes; null keeps all weights and state in each of them. Scores
    are the same up to the order of floating-point sums, and a training can continue in another stage."""
    num_threads: int | None = Field(default=None, gt=0)
    """CPU threads of a process; null leaves it to torch and OMP_NUM_THREADS."""
    side_by_side: int | None = Field(default=1, gt=0)
    """Trainings at a time, each in a Ray worker of its own; 1 trains in this process, null takes one for each GPU, or
    without GPUs for each `num_threads` CPUs of the cluster."""
    save_every_s: float = Field(default=60.0, ge=0)
    """Least seconds between two saves of a running training; a killed one continues from the last, bit for bit."""
    log_every_updates: int = Field(default=20, gt=0)
    """Updates whose mean loss is one point in MLflow."""

    @model_validator(mode="after")
    def _sound(self) -> FinetuneConfig:
        problems = [
            f"task name {name!r} must start with a letter or digit and hold only these, '.', '_' and '-'"
            for name in self.tasks
            if not re.match(NAME_PATTERN, name)
        ]
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            problems.append(f"seeds {list(self.seeds)} must be different and not negative")
        problems += self._zero_problems()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _zero_problems(self) -> Iterator[str]:
        """Settings that DeepSpeed ZeRO cannot be combined with."""
        if self.zero is None:
            return
        stage = self.zero.stage
        if self.zero.offload_parameters is not None and stage != 3:
            yield f"zero.offload_parameters needs zero.stage 3, not {stage}"
        if self.zero.offload_optimizer is not None and stage == 0:
            yield "zero.offload_optimizer needs zero.stage 1, 2 or 3, not 0"
        if self.precision == "fp16":
            yield "precision fp16 does not work with zero; take bf16, or leave zero out"
        for name in self.tasks:
            training = self.training_of(name)
            if training.optimizer.NEEDS_WHOLE:
                yield (
                    f"training.optimizer.kind {training.optimizer.kind} of the task {name} does not work with zero:"
                    f" {training.optimizer.NEEDS_WHOLE}; leave zero out, or take adamw"
                )
            for setting in ("peft", "features") if stage == 3 else ():
                if getattr(training, setting) is not None:
                    yield (
                        f"training.{setting} of the task {name} does not work with zero.stage 3, which shards only"
                        " weights that are trained; take zero.stage 2"
                    )

    def training_of(
        self, task: str, choice: Mapping[str, float | int] = MappingProxyType({})
    ) -> TrainingConfig:
        """The settings a task is trained with, `choice` among the searched ones."""
        own = {name: value for name, value in self.tasks[task].training if value is not None}
        return TrainingConfig.model_validate(dict(self.training) | own | dict(choice))
