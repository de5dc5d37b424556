"""The settings of probes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.loading import Config
from pipeline.tasks.superglue import WicConfig
from pipeline.tasks.tagging import ConllNerConfig, ConlluPosConfig
from pipeline.tune.config import NAME_PATTERN

ProbeKind = Literal["linear", "mlp"]


class ProbeConfig(Config):
    """Classifiers on the hidden states of every layer of a network, which stays as it is."""

    name: str = Field(default="probe", pattern=NAME_PATTERN)
    """Names the result."""
    out: Path = Path("probes")
    """Directory of results; each lies in `NAME/CHECKPOINT` below it."""
    runs_dir: Path = Path("runs")
    """Directory of pre-training runs and of the tracking store."""
    task: Annotated[ConlluPosConfig | ConllNerConfig | WicConfig, Field(discriminator="kind")]
    """The task: a label for each word, or for a word in two sentences."""
    probes: tuple[ProbeKind, ...] = Field(default=("linear",), min_length=1)
    """`linear`, a logistic regression; `mlp`, a network with one hidden layer."""
    layers: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Indices of layers, 0 for the embeddings and -1 for the last; null takes all."""
    control: bool = True
    """Whether every probe also learns a random label for each word (Hewitt and Liang 2019), to see how much of its
    accuracy is memory."""
    seed: int = Field(default=1, ge=0)
    """Decides the labels of the control task and the weights of probes."""
    max_train_examples: int | None = Field(default=1000, gt=0)
    """Sentences to learn from, or pairs of sentences, a fixed random sample; null takes all."""
    max_evaluation_examples: int | None = Field(default=500, gt=0)
    """Sentences to score on, or pairs of sentences, a fixed random sample; null takes all."""
    inverse_l2: float = Field(default=1.0, gt=0)
    """Inverse of the weight of the L2 penalty of a linear probe."""
    hidden_size: int = Field(default=100, gt=0)
    """Width of the hidden layer of an MLP."""
    max_iterations: int = Field(default=200, gt=0)
    """Iterations of a linear probe, epochs of an MLP."""

    @model_validator(mode="after")
    def _sound(self) -> ProbeConfig:
        if len(set(self.probes)) != len(self.probes):
            raise ValueError(f"probes {list(self.probes)} must be different")
        return self
