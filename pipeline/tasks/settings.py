"""How one network is fine-tuned. Defaults follow RoBERTa (Liu et al. 2019, appendix C, table 10), the optimizer's its
authors."""

from __future__ import annotations

import re
from itertools import product
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from models.config import FeatureSettings
from models.peft.settings import PeftSettings
from pipeline.config.loading import Config
from pipeline.optimizers import Optimizer
from pipeline.optimizers.finetuning import DEFAULT, FinetuningOptimizer, with_rates

Scored = Literal["every_epoch", "last_epoch"]
Kept = Literal["last", "best"]
PeftChoice = Annotated[PeftSettings, Field(discriminator="kind")]
"""Methods of parameter-efficient fine-tuning, by `kind`."""


class DistillSettings(Config):
    """Learning from the probabilities of a fine-tuned teacher (Hinton et al. 2015; Sanh et al. 2019), for labels,
    numbers, tags and spans."""

    teacher: str = Field(min_length=1)
    """A network that was fine-tuned on the same labels: SCORES@TRAINING, a directory of scores with one training, or a
    Hugging Face directory."""
    temperature: float = Field(default=2.0, gt=0)
    """Divides the scores of both networks before they are compared; numbers have none."""
    soft_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the loss that comes from the teacher; the rest comes from the right answers."""
    hidden_weight: float = Field(default=0.0, ge=0)
    """Weight of the distance between hidden states, 1 - cosine, beside that loss. Needs the teacher's tokens and
    hidden_size; 0 leaves hidden states alone."""


class TrainingConfig(Config):
    """Settings of one training, shared by all tasks unless a task overrides them."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # `TrainingOverrides` is made from them

    epochs: int = Field(default=10, gt=0)
    """Passes over the training examples; the score is taken after the last."""
    batch_size: int = Field(default=16, gt=0)
    """Examples of the global batch: one update learns from them, on any number of processes."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Examples in one forward pass; null takes the whole batch, which only a single process can do. Dropout
    is drawn per micro-batch, so the same value gives the same scores on any number of processes."""
    lr: float = Field(default=2e-5, gt=0)
    """Peak learning rate."""
    warmup_fraction: float = Field(default=0.06, ge=0, lt=1)
    """The rate rises linearly over this share of the updates, then falls linearly to zero."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices; never to biases and norms."""
    max_length: int = Field(default=128, ge=8)
    """Tokens of an input with its special tokens; longer inputs are cut."""
    max_train_examples: int | None = Field(default=None, gt=0)
    """Training examples used: a fixed sample, the same for every seed; null uses all."""
    scored: Scored = "every_epoch"
    """After which epochs the evaluation examples are scored; where texts are searched for, the last may be enough."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Learning rate of each layer as a share of the layer's above it (Clark et al. 2020, table 7); null trains all
    layers at the same rate."""
    optimizer: FinetuningOptimizer = DEFAULT
    """The optimizer: AdamW(0.9, 0.999, 1e-8) unless another is named. Its rates are `lr`, `weight_decay` and
    `layer_decay` of the training."""
    keep: Kept = "last"
    """The epoch whose weights, predictions and score count: the last, or the one with the best main metric on the
    evaluation examples. The best is chosen on the examples that it is scored on, and tables say so."""
    patience: int | None = Field(default=None, gt=0)
    """End after so many scored epochs without a better main metric; null trains all epochs. The learning rate falls as
    if all epochs came."""

    peft: PeftChoice | None = None
    """Parameter-efficient method that is trained instead of all weights: LoRA, adapters, a prefix, biases, or MAM; null
    trains all weights."""
    features: FeatureSettings | None = None
    """Train a linear layer on frozen features of these layers, for tags and for labels of texts (Devlin et al. 2019,
    section 5.3; Peters et al. 2018); null trains the network."""
    distill: DistillSettings | None = None
    """Learn also from a teacher; null learns from the right answers alone."""

    @model_validator(mode="after")
    def _fitting(self) -> TrainingConfig:
        if self.distill is not None and self.distill.hidden_weight and self.features is not None:
            raise ValueError("features are of frozen hidden states; set distill.hidden_weight to 0")
        if self.peft is not None and self.features is not None:
            raise ValueError("features are of frozen weights, and peft changes what they do; set one of them")
        if self.scored == "last_epoch" and (self.keep == "best" or self.patience):
            raise ValueError("keep: best and patience compare epochs, and need scored: every_epoch")
        return self


def optimizer_with_rates(training: TrainingConfig) -> Optimizer:
    """The optimizer with this training's rates."""
    return with_rates(
        training.optimizer,
        lr=training.lr,
        weight_decay=training.weight_decay,
        layer_decay=training.layer_decay,
    )


def _overriding(field: FieldInfo) -> Any:
    """The type and default of a setting that takes the shared value where it is null."""
    meaning = re.sub(r"; null\s[^.]*", "; null takes the shared value", field.description or "")
    allowed = Annotated[field.annotation, Field(), *field.metadata]  # pyright: ignore[reportInvalidTypeForm]
    return cast(Any, allowed) | None, Field(default=None, description=meaning)


TrainingOverrides = create_model(
    "TrainingOverrides",
    __base__=TrainingConfig,
    __doc__="A task's own values for training settings; null takes the shared value.",
    **{name: _overriding(field) for name, field in TrainingConfig.model_fields.items()},
)


class Search(Config):
    """A grid of training settings: every task is trained with every combination and every seed."""

    lr: tuple[float, ...] = ()
    """Peak learning rates; none takes the training's."""
    batch_size: tuple[int, ...] = ()
    """Examples of the global batch."""
    epochs: tuple[int, ...] = ()
    """Passes over the training examples."""

    @property
    def choices(self) -> tuple[dict[str, float | int], ...]:
        """Every combination, the first setting slowest; a single empty one without a search."""
        searched = {name: values for name, values in self.model_dump().items() if values}
        return tuple(dict(zip(searched, chosen, strict=True)) for chosen in product(*searched.values()))


Precision = Literal["fp32", "bf16", "fp16"]
