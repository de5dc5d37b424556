"""The sections of a pre-training run's configuration."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from cluster.artefacts.errors import ConfigProblem
from cluster.artefacts.places import PlaceSetting
from data_prep.short_forms import also_written
from pipeline.config.loading import Config
from pipeline.config.problems import SettingsMisfit
from pipeline.samples.formats import Format

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class StoreConfig(Config):
    """One token store of the training mixture."""

    path: PlaceSetting
    """Directory of a committed token store, or an fsspec URI such as s3://bucket/corpus/tokens; every machine
    keeps a copy. Holds no credentials."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the samples, relative to the other stores."""
    sources: tuple[str, ...] | None = None
    """Only documents of these sources; None takes all. A store may be named several times, with a weight for each
    of its sources or languages."""
    langs: tuple[str, ...] | None = None
    """Only documents in these languages (ISO 639-1 codes); None takes all."""


class DataConfig(Config):
    """Data that the run is trained on."""

    stores: tuple[StoreConfig, ...] = Field(min_length=1)
    """Token stores made by `cloze data prepare`, all with the same tokenizer."""
    held_out: float = Field(default=0.01, gt=0, lt=1)
    """Share of the documents that training never sees; chosen by document id, the same in every run."""
    language_temperature: float | None = Field(default=None, gt=0, le=1)
    """Languages are drawn in proportion to (their share of the tokens) ** this (mBART: 0.7); null leaves the shares to
    the stores."""


class Phase(Config):
    """A stretch of the run with its own sequence length (Devlin et al. 2019, appendix A.2: 128, then 512), or with its
    own mixture of the stores."""

    steps: int = Field(gt=0)
    """Steps that it lasts."""
    sequence_length: int | None = Field(default=None, ge=4)
    """Tokens per sample; null takes `batch.sequence_length`."""
    weights: tuple[float, ...] | None = None
    """Weights of the stores, in the order of `data.stores`; null takes their own. 0 leaves a store out."""


class BatchStage(Config):
    """A stretch of the warm-up of the batch size."""

    steps: int = Field(gt=0)
    """Steps that it lasts."""
    samples: int = Field(gt=0)
    """Samples of the global batch during these steps."""


class BatchConfig(Config):
    """The global batch of a step, and how it is cut."""

    sequence_length: int = Field(default=512, ge=4)
    """Tokens per sample."""
    phases: tuple[Phase, ...] = ()
    """Stretches with other sequence lengths or mixtures at the beginning of the run, one after the other."""
    format: Format | None = None
    """How samples are cut from documents (Liu et al. 2019, section 4.2); null takes what the objective's paper does."""
    shared_targets: bool = False
    """For `segment_pair`: whether all pairs of a document aim at one length, a short one in a tenth of the documents,
    as in BERT's released code; false lets a tenth of the pairs of any document aim at short ones."""
    samples: int = Field(gt=0)
    """Samples of the global batch: what one update learns from, on however many workers."""
    warmup: tuple[BatchStage, ...] = ()
    """Stretches with other batch sizes at the beginning of the run, one after the other (Brown et al. 2020, appendix
    B)."""
    micro_batch_size: int = Field(gt=0)
    """Samples in one forward pass of one worker. Fixes the run's arithmetic: it is part of the run's identity."""
    attention: Literal["documents", "full"] = "documents"
    """Whether attention stays inside each document of a packed sample, or crosses them."""

    @model_validator(mode="after")
    def _arithmetic(self) -> BatchConfig:
        sizes = {
            "samples": self.samples,
            **{f"warmup.{number}.samples": stage.samples for number, stage in enumerate(self.warmup)},
        }
        problems = [
            ConfigProblem(
                key,
                str(size),
                must_be_multiple(size, self.micro_batch_size, f"micro_batch_size {self.micro_batch_size}"),
            )
            for key, size in sizes.items()
            if size % self.micro_batch_size
        ]
        if problems:
            raise SettingsMisfit(problems)
        return self


def must_be_multiple(value: int, step: int, of: str) -> str:
    """The message for a number that is not a multiple of `step`, with the nearest that are."""
    below = value - value % step
    return f"must be a multiple of {of}; the nearest are {below or step} and {below + step}"


class ScheduleConfig(Config):
    """Learning rate over the run."""

    kind: Literal["linear", "cosine", "polynomial", "constant", "inverse_sqrt", "wsd"] = "linear"
    """Shape after the warm-up. `inverse_sqrt` falls with the square root of the step (Vaswani et al. 2017, section
    5.3), whatever the number of steps; `wsd` stays at the peak and falls at the end (Hu et al. 2024, section 4)."""
    constant_steps: int = Field(default=0, ge=0)
    """For `inverse_sqrt`: the rate stays at its peak for so many first steps (Raffel et al. 2020, section 3.1.2:
    10,000), then falls as sqrt(constant_steps / step)."""
    decay_tokens: int | None = Field(default=None, gt=0)
    """For `linear`, `cosine` and `polynomial`: the rate reaches `final_share` after so many tokens of text, counted
    from the beginning of the run, and stays there (Brown et al. 2020, appendix B: 260 billion of 300); null takes the
    whole run, counted in steps."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear rise from zero."""
    warmup_tokens: int | None = Field(default=None, gt=0)
    """The same in tokens of text, whatever the sizes of the batches; in place of `warmup_steps`."""
    final_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak learning rate that it would have after the last step."""
    power: float = Field(default=1.0, gt=0)
    """For `polynomial`: 1 falls linearly, 2 along a parabola."""
    decay_share: float = Field(default=0.1, gt=0, le=1)
    """For `wsd`: the rate falls linearly over this last share of the run."""

    @model_validator(mode="after")
    def _fits(self) -> ScheduleConfig:
        problems = []
        if self.warmup_tokens is not None and self.warmup_steps:
            message = "cannot stand beside warmup_steps; remove one of them"
            problems.append(ConfigProblem("warmup_tokens", str(self.warmup_tokens), message))
        if self.constant_steps and self.kind != "inverse_sqrt":
            message = f"belongs to kind inverse_sqrt, not {self.kind}; remove it"
            problems.append(ConfigProblem("constant_steps", str(self.constant_steps), message))
        if self.decay_tokens is not None and self.kind not in ("linear", "cosine", "polynomial"):
            message = f"belongs to kind linear, cosine or polynomial, not {self.kind}; remove it"
            problems.append(ConfigProblem("decay_tokens", str(self.decay_tokens), message))
        if self.decay_tokens is not None and self.decay_tokens <= (self.warmup_tokens or 0):
            message = f"must be above warmup_tokens {self.warmup_tokens}"
            problems.append(ConfigProblem("decay_tokens", str(self.decay_tokens), message))
        if problems:
            raise SettingsMisfit(problems)
        return self


class BudgetConfig(Config):
    """Limits of the run. `budget: 24h` is short for `budget: {time_s: 86400}`."""

    model_config = ConfigDict(json_schema_extra=also_written({"type": "string"}))

    time_s: float | None = Field(default=None, gt=0)
    """Seconds of training, over all resumptions; start-up is not counted. The learning rate falls with the time spent
    (Izsak et al. 2021, section 3), or with the steps if those are further."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens of text, before noise; gives `steps`."""
    min_steps: int = Field(default=0, ge=0)
    """Updates that are made whatever the time: the learning rate does not fall faster than if these were all. A slow
    machine then takes longer, instead of training for too few steps."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        matched = _DURATION.fullmatch(value.strip())
        if matched is None:
            message = "must be a duration such as 90m, 24h or 2d, or {tokens: 10000000000}"
            raise SettingsMisfit([ConfigProblem("", value, message)])
        return {"time_s": float(matched["number"]) * _SECONDS[matched["unit"]]}


class EmaConfig(Config):
    """An exponential moving average of the weights, kept beside them in float32 (Polyak and Juditsky 1992)."""

    decay: float = Field(gt=0, lt=1)
    """Share of the average that one update leaves."""


class EvaluationConfig(Config):
    """Loss on held-out documents."""

    every_steps: int = Field(default=1000, gt=0)
    """Steps between evaluations; the first is before training, the last after it."""
    samples: int = Field(default=512, gt=0)
    """Held-out samples: the same ones whatever the sizes of batches and the number of workers."""
    per_source: bool = False
    """Measure each source of the stores alone too, with as many samples."""
    metric: str | None = None
    """The metric that compares evaluations, for the best checkpoint and for `patience`: `loss`, the weighted
    sum of the terms, or `TERM/loss`, `TERM/accuracy` (the higher the better), `TERM/perplexity` of one of them. null
    takes `loss` where there is one term and for `bilm`; `mlm/loss` for `mlm` with pairs, `span` and `distill`;
    `rtd/loss` for `rtd`."""
    patience: int | None = Field(default=None, gt=0)
    """The run ends after so many evaluations in a row without a better metric; one whose metric is not finite counts
    among them. null never ends a run so."""
    min_improvement: float = Field(default=0.0, ge=0)
    """By how much a metric must be better than the best one, in its own unit: nats for losses."""


class CheckpointConfig(Config):
    """When to save, where, and what to keep."""

    every_steps: int = Field(default=1000, gt=0)
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(default=3, gt=0)
    """Newest checkpoints kept besides the best one."""
    keep_every_steps: int | None = Field(default=None, gt=0)
    """Checkpoints of every so many steps are kept for good."""
    directory: PlaceSetting | None = None
    """A directory or fsspec URI, such as s3://bucket/checkpoints, that gets a directory per run; null keeps
    checkpoints in the run's directory. Holds no credentials."""
    asynchronous: bool = True
    """Write during training: only the next update waits, until the state is copied in memory."""


class ComputeConfig(Config):
    """How the network is computed."""

    attention_backend: Literal["auto", "sdpa", "varlen"] = "auto"
    """Kernel of the attention; `auto` takes variable-length flash attention where it works. The run's history says
    what was chosen, and why."""
    gradient_checkpointing: bool = False
    """Recompute layers in the backward pass instead of keeping their activations (Chen et al. 2016)."""
    compile: bool = False
    """Compile the network with torch.compile: a minute or more at the start, less per step."""
    deterministic: bool = False
    """Take deterministic algorithms on GPUs: slower, and a killed and resumed run has the same bits as one that never
    stopped. On CPUs it has them anyway."""


class GuardsConfig(Config):
    """Measures against training that goes wrong. No part of the run's identity: what was done is in the run's
    history and repeated by every resumption."""

    max_skipped_updates: int = Field(default=10, ge=0)
    """Updates in a row that may be skipped because the loss or a gradient is not finite; one more ends the run."""
    spike_score: float | None = Field(default=None, gt=0)
    """Robust z-score of a step's loss among the last ones, (loss - median) / (1.4826 x median absolute deviation), at
    which the run is rolled back to its last checkpoint without the step's samples (Chowdhery et al. 2022, section
    5.1); null never does."""
    spike_window: int = Field(default=64, ge=8)
    """Losses that a step is compared with; until there are so many, no step is a spike."""
    max_rollbacks: int = Field(default=3, ge=0)
    """Spikes of a run that are left out so; one more ends it."""
    stall_timeout_s: float = Field(default=900.0, gt=0)
    """After so many seconds without progress, a worker writes down its stacks and ends, so that the group is restarted.
    The first step after a start has ten times as long."""
    straggler_ratio: float = Field(default=1.3, gt=1)
    """A worker whose median time is this many times the group's is named in the run's history."""
    straggler_every_steps: int = Field(default=100, gt=0)
    """Steps between comparisons of the workers' times."""
    grace_s: float = Field(default=60.0, gt=0)
    """Seconds that a stop by SIGTERM has for saving; the operator's own grace time must be longer."""


class ProfileConfig(Config):
    """A profile of some steps."""

    steps: tuple[int, int]
    """First step, and one past the last, counted from 0; a trace and a table of the parts of a step are written to the
    run's directory."""

    @model_validator(mode="after")
    def _ascending(self) -> ProfileConfig:
        first, last = self.steps
        if not 0 <= first < last:
            message = "must be two numbers, the first below the second, such as [10, 12]"
            raise SettingsMisfit([ConfigProblem("steps", f"[{first}, {last}]", message)])
        return self


class ClusterConfig(Config):
    """Machines that the run takes. No part of the run's identity."""

    workers: int = Field(default=1, gt=0)
    """Training processes, one per GPU or per share of CPUs; of an elastic run the most."""
    min_workers: int | None = Field(default=None, gt=0)
    """Least workers of an elastic run: every start takes as many as the cluster has room for, of the numbers that share
    out a step evenly. Null always takes `workers`."""
    resize_interval_s: float = Field(default=60.0, ge=0)
    """Least seconds between two looks of an elastic run for room for more workers."""
    cpus_per_worker: int = Field(default=1, gt=0)
    """CPU threads of each worker."""
    gpus_per_worker: int = Field(default=0, ge=0, le=1)
    """GPUs that Ray reserves for each worker; 0 where workers share a GPU or use none."""
    address: str | None = None
    """Ray address; null takes RAY_ADDRESS, or starts a local cluster."""
    max_failures: int = Field(default=3, ge=0)
    """Restarts after workers were lost: with a process, a machine, a network or a file system. Every new checkpoint
    renews them. Preempted and drained nodes cost none; wrong settings and damaged data are never tried again."""
    max_errors: int = Field(default=1, ge=0)
    """Restarts after a worker raised an exception of the program, which most likely comes again; every new checkpoint
    renews them."""
