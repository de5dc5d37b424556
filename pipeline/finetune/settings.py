"""How one network is fine-tuned. Defaults follow RoBERTa (Liu et al. 2019, appendix C, table 10)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.loading import Config

Scored = Literal["every_epoch", "last_epoch"]


class TrainingConfig(Config):
    """Settings of one training, shared by all tasks unless a task overrides them."""

    epochs: int = Field(default=10, gt=0)
    """Passes over the training examples; the score is taken after the last."""
    batch_size: int = Field(default=16, gt=0)
    """Examples of the global batch: one update learns from them, on any number of processes."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Examples in one forward pass; null takes the whole batch, which only a single process can do. Dropout
    is drawn per micro-batch, so the same value gives the same scores on any number of processes."""
    lr: float = Field(default=2e-5, gt=0)
    """Peak learning rate of AdamW."""
    warmup_fraction: float = Field(default=0.06, ge=0, lt=1)
    """Share of the updates in which the rate rises linearly; afterwards it falls linearly to zero."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices; never to biases and norms."""
    max_length: int = Field(default=128, ge=8)
    """Tokens of an input with its special tokens; longer inputs are cut."""
    max_train_examples: int | None = Field(default=None, gt=0)
    """Training examples used: a fixed sample, the same for every seed; null uses all."""
    scored: Scored = "every_epoch"
    """After which epochs the evaluation examples are scored; where texts are searched for, the last may be enough."""


class TrainingOverrides(Config):
    """A task's own values for training settings; null takes the shared value."""

    epochs: int | None = Field(default=None, gt=0)
    """Passes over the training examples."""
    batch_size: int | None = Field(default=None, gt=0)
    """Examples of the global batch."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Examples in one forward pass."""
    lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of AdamW."""
    warmup_fraction: float | None = Field(default=None, ge=0, lt=1)
    """Share of the updates in which the rate rises."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Applied to matrices."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens of an input with its special tokens."""
    max_train_examples: int | None = Field(default=None, gt=0)
    """Training examples used."""
    scored: Scored | None = None
    """After which epochs the evaluation examples are scored."""

    def applied_to(self, shared: TrainingConfig) -> TrainingConfig:
        """`shared`, with the values that are set here."""
        return shared.model_copy(update=self.model_dump(exclude_none=True))


Precision = Literal["fp32", "bf16"]
