"""The configuration of a pre-training run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigError, ConfigProblem
from models.config import TransformerConfig
from pipeline.config.loading import Config
from pipeline.config.problems import SettingsMisfit, nearest
from pipeline.objectives import OBJECTIVES, ObjectiveChoice
from pipeline.optimizers import OptimizerChoice
from pipeline.run.settings import (
    BatchConfig,
    BudgetConfig,
    CheckpointConfig,
    ClusterConfig,
    ComputeConfig,
    DataConfig,
    EmaConfig,
    EvaluationConfig,
    GuardsConfig,
    Phase,
    ProfileConfig,
    ScheduleConfig,
    must_be_multiple,
)
from pipeline.run.shared_settings import NetworkChoice, WandbConfig, ZeroConfig
from pipeline.samples.batch_plan import UNBOUNDED_STEPS, BatchPlan, TokenPlan
from pipeline.samples.formats import Format
from pipeline.samples.packed import Reading
from pipeline.terms import deciding_metric, metric_names


class PretrainConfig(Config):
    """One pre-training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run together with its MLflow run id, and the registered model."""
    runs_dir: Path = Path("runs")
    """Directory that holds one directory per run."""
    experiment: str = "pretrain"
    """MLflow experiment."""
    wandb: WandbConfig | None = None
    """A copy of the run in Weights & Biases, whose key is in WANDB_API_KEY or ~/.netrc; null makes none."""
    data: DataConfig
    """The token stores, their mixture, and the held-out share."""
    model: NetworkChoice
    """The network; `vocab_size` is taken from the tokens unless given."""
    objective: ObjectiveChoice
    """The pre-training objective."""
    batch: BatchConfig
    """Samples of an update, and how they are cut."""
    steps: int | None = Field(default=None, gt=0, lt=UNBOUNDED_STEPS)
    """Updates of the whole run; may be left out where the budget says how long it is."""
    budget: BudgetConfig | None = None
    """Limit of the run, in time or tokens."""
    optimizer: OptimizerChoice
    """The optimizer, with its learning rate."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over the run."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Loss on held-out documents."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written, where, and which are kept."""
    zero: ZeroConfig = ZeroConfig()
    """DeepSpeed ZeRO: what workers share out among each other."""
    compute: ComputeConfig = ComputeConfig()
    """How a step is computed."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of weights and activations in the network; gradients add up in fp32, and the optimizer works in
    fp32. `fp16` scales the loss dynamically and needs CUDA."""
    ema: EmaConfig | None = None
    """An average of the weights over the run, which checkpoints hold beside them."""
    seed: int = Field(default=1, ge=0)
    """Decides initial weights, order, noise and dropout."""
    guards: GuardsConfig = GuardsConfig()
    """Reactions to loss spikes, NaN, stalls and lost workers."""
    profile: ProfileConfig | None = None
    """Steps that are profiled."""
    cluster: ClusterConfig = ClusterConfig()
    """The workers, and the Ray cluster that they run on."""

    @model_validator(mode="after")
    def _fits(self) -> PretrainConfig:
        problems = [
            *self._step_problems(),
            *self._phase_problems(),
            *self._zero_problems(),
            *self._network_problems(),
            *self._metric_problems(),
        ]
        try:
            problems += [*self._position_problems(), *self._format_problems()]
        except ConfigError as error:
            problems.append(ConfigProblem("objective", "", f"{error.problem} ({error.next_step})"))
        if problems:
            raise SettingsMisfit(problems)
        return self

    @property
    def reading(self) -> Reading:
        """The objective's demands on samples of `batch.sequence_length`."""
        return self.objective.reading(self.batch.sequence_length)

    @property
    def format(self) -> Format:
        """How samples are cut from documents."""
        return self.batch.format or self.reading.formats[0]

    @property
    def metric(self) -> str:
        """The metric of evaluations that decides which of two checkpoints is better."""
        return self.evaluation.metric or deciding_metric(self.objective.terms())

    @cached_property
    def token_plan(self) -> TokenPlan:
        """Samples and sequence lengths by step."""
        return TokenPlan.of(self.model_dump(include={"batch", "steps", "budget"}))

    @property
    def num_steps(self) -> int:
        """Updates of the whole run; UNBOUNDED_STEPS where only its time ends it."""
        return self.token_plan.num_steps

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All stretches of the run; the last one lasts to its end."""
        rest = self.num_steps - sum(phase.steps for phase in self.batch.phases)
        return (*self.batch.phases, Phase(steps=max(rest, 1)))

    @property
    def batch_plan(self) -> BatchPlan:
        """How many samples each step has, and how they are cut."""
        return self.token_plan.batches

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Numbers of workers that the run may have, descending: each shares out every step evenly."""
        cluster, micro = self.cluster, self.batch.micro_batch_size
        sizes = [self.batch.samples, *(one.samples for one in self.batch.warmup)]
        counts = range(cluster.workers, (cluster.min_workers or cluster.workers) - 1, -1)
        return tuple(count for count in counts if not any(size % (micro * count) for size in sizes))

    def length_of(self, phase: Phase) -> int:
        """Tokens per sample in a phase."""
        return phase.sequence_length or self.batch.sequence_length

    def tokens_before(self, step: int) -> int:
        """Tokens of text, before noise, that the steps before `step` read."""
        return self.token_plan.tokens_before(step)

    def _step_problems(self) -> Iterator[ConfigProblem]:
        if self.steps is None and (
            self.budget is None or (self.budget.tokens is None and self.budget.time_s is None)
        ):
            yield ConfigProblem(
                "steps", "", "must be given, or a budget such as 24h or {tokens: 10000000000}"
            )
        step = self.batch.micro_batch_size * self.cluster.workers
        sizes = {
            "batch.samples": self.batch.samples,
            **{f"batch.warmup.{number}.samples": one.samples for number, one in enumerate(self.batch.warmup)},
        }
        factors = (
            f"batch.micro_batch_size {self.batch.micro_batch_size} x cluster.workers {self.cluster.workers}"
        )
        least = self.cluster.min_workers
        if least is not None and least > self.cluster.workers:
            message = f"must be at most cluster.workers {self.cluster.workers}"
            yield ConfigProblem("cluster.min_workers", str(least), message)
        for key, size in sizes.items():
            if size % step and not self.group_sizes:
                yield ConfigProblem(key, str(size), must_be_multiple(size, step, f"{factors} = {step}"))
        if self.schedule.warmup_steps >= self.num_steps:
            message = f"must be below steps {self.num_steps}"
            yield ConfigProblem("schedule.warmup_steps", str(self.schedule.warmup_steps), message)
        tokens = self.schedule.warmup_tokens
        if tokens is not None and tokens >= (whole := self.tokens_before(self.num_steps)):
            message = f"must be below the {whole} tokens of the run"
            yield ConfigProblem("schedule.warmup_tokens", str(tokens), message)
        horizon = self.schedule.decay_tokens
        if horizon is not None and horizon <= (first := self.tokens_before(self.schedule.warmup_steps)):
            message = f"must be above the {first} tokens of the warm-up"
            yield ConfigProblem("schedule.decay_tokens", str(horizon), message)
        last = self.tokens_before(self.num_steps - 1)
        if horizon is not None and horizon <= last and not self.schedule.final_share:
            message = (
                "must be above 0 where schedule.decay_tokens end before the last step: it would learn nothing"
            )
            yield ConfigProblem("schedule.final_share", "0", message)
        if self.budget is not None and self.budget.min_steps > self.num_steps:
            message = f"must be at most steps {self.num_steps}"
            yield ConfigProblem("budget.min_steps", str(self.budget.min_steps), message)

    def _phase_problems(self) -> Iterator[ConfigProblem]:
        if (stretch := sum(phase.steps for phase in self.batch.phases)) >= self.num_steps:
            message = f"last {stretch} steps; they must leave some of the {self.num_steps} steps"
            yield ConfigProblem("batch.phases", "", message)
        stores = len(self.data.stores)
        for number, phase in enumerate(self.batch.phases):
            weights = phase.weights
            if weights is not None and (len(weights) != stores or min(weights) < 0 or not any(weights)):
                message = f"must be {stores} numbers of 0 or more, one for each of data.stores, and not all 0"
                yield ConfigProblem(f"batch.phases.{number}.weights", str(list(weights)), message)

    def _zero_problems(self) -> Iterator[ConfigProblem]:
        zero, optimizer = self.zero, self.optimizer
        if zero.offload_parameters is not None and zero.stage != 3:
            yield ConfigProblem("zero.offload_parameters", "", f"needs zero.stage 3, not {zero.stage}")
        if zero.offload_optimizer is not None and zero.stage == 0:
            yield ConfigProblem("zero.offload_optimizer", "", "needs zero.stage 1, 2 or 3, not 0")
        if zero.reduce_dtype not in ("fp32", self.precision):
            message = f"must be fp32, or the run's precision ({self.precision})"
            yield ConfigProblem("zero.reduce_dtype", zero.reduce_dtype, message)
        if self.compute.compile and zero.stage == 3:
            message = "does not work with zero.stage 3, which keeps weights elsewhere; take zero.stage 2"
            yield ConfigProblem("compute.compile", "true", message)
        if optimizer.NEEDS_WHOLE and zero.stage != 0:
            message = f"needs zero.stage 0, not {zero.stage}: {optimizer.NEEDS_WHOLE}"
            yield ConfigProblem("optimizer.kind", optimizer.kind, message)

    def _network_problems(self) -> Iterator[ConfigProblem]:
        kind, network = self.objective.kind, self.model.network
        able = self.objective.NETWORKS
        if network not in able:
            others = [name for name, one in OBJECTIVES.items() if network in one.NETWORKS]
            yield ConfigProblem(
                "objective.kind",
                kind,
                f"needs model.network {' or '.join(able)}, not {network}; set it, or one of the objectives for"
                f" {network}: {', '.join(others)}",
            )

    def _metric_problems(self) -> Iterator[ConfigProblem]:
        chosen, kind = self.evaluation.metric, self.objective.kind
        able = tuple(metric_names(self.objective.terms()))
        if chosen is not None and chosen not in able:
            near = nearest(chosen, able)
            yield ConfigProblem(
                "evaluation.metric",
                chosen,
                f"is not measured for objective.kind {kind}; allowed are {', '.join(able)}"
                f"{f' (nearest: {near})' if near else ''}",
            )

    def _position_problems(self) -> Iterator[ConfigProblem]:
        model = self.model
        if not isinstance(model, TransformerConfig):
            return
        if self.reading.relation is not None and model.num_segments < 2:
            yield ConfigProblem(
                "model.num_segments",
                str(model.num_segments),
                f"must be 2 for objective.pairs {self.reading.relation}, which distinguishes two segments; or set"
                " objective.pairs=null",
            )
        if model.positions != "learned":
            return
        lengths = {"batch.sequence_length": self.batch.sequence_length}
        for number, phase in enumerate(self.batch.phases):
            lengths[f"batch.phases.{number}.sequence_length"] = self.length_of(phase)
        for key, length in lengths.items():
            needed = max(length, self.objective.reading(length).positions)
            if needed > model.max_positions:
                reason = "" if needed == length else f"has texts of up to {needed} tokens; that "
                yield ConfigProblem(
                    key,
                    str(length),
                    f"{reason}exceeds model.max_positions {model.max_positions}; set model.max_positions to"
                    f" {needed} or more, or lower the length",
                )

    def _format_problems(self) -> Iterator[ConfigProblem]:
        if self.batch.shared_targets and self.format != "segment_pair":
            message = f"belongs to batch.format segment_pair, not {self.format}; remove it"
            yield ConfigProblem("batch.shared_targets", "true", message)
        chosen, able = self.batch.format, self.reading.formats
        if chosen is None or chosen in able:
            return
        near = nearest(chosen, able)
        kind = self.objective.kind
        pairs = f" with objective.pairs {self.reading.relation or 'null'}" if kind in ("mlm", "span") else ""
        yield ConfigProblem(
            "batch.format",
            chosen,
            f"does not fit objective.kind {kind}{pairs}; allowed are {', '.join(able)}"
            f"{f' (nearest: {near})' if near else ''}",
        )


IDENTITY_EXCLUDES = frozenset(
    {"name", "runs_dir", "experiment", "wandb", "cluster", "checkpoint", "zero", "guards", "profile"}
)
"""Settings that may change between a run and its resumption: they change no update."""
_PLACES = frozenset({"teacher", "runs_dir"})
"""Settings of an objective that say where something is."""


def identity_of(config: PretrainConfig) -> dict:
    """The part of the configuration that determines every update; stores and a teacher are left to fingerprints."""
    plain = config.model_dump(mode="json", exclude=set(IDENTITY_EXCLUDES))
    plain["objective"] = {name: value for name, value in plain["objective"].items() if name not in _PLACES}
    plain["data"] = {
        **config.data.model_dump(mode="json", exclude={"stores"}),
        "stores": [store.model_dump(mode="json", exclude={"path"}) for store in config.data.stores],
    }
    return plain
