"""The settings of prompts for a task, and of probes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Union

from pydantic import Field, field_validator, model_validator

from cluster.artefacts.errors import ConfigProblem
from pipeline.config.loading import Config
from pipeline.config.problems import SettingsMisfit
from pipeline.tasks import TASKS
from pipeline.tasks.forms import ClassificationTaskConfig
from pipeline.tasks.superglue import WicConfig
from pipeline.tasks.tagging import ConllNerConfig, ConlluPosConfig
from pipeline.tune.config import NAME_PATTERN

PROMPTED = {
    kind: task
    for kind, task in TASKS.items()
    if issubclass(task, ClassificationTaskConfig) and not task.regression
}
"""Kinds of tasks that can be prompted: those of classification."""
PromptedTask = Annotated[Union[tuple(PROMPTED.values())], Field(discriminator="kind")]  # noqa: UP007
Scoring = Literal["left_to_right", "joint"]


class PromptConfig(Config):
    """A task asked of a network by prompts, without training."""

    name: str = Field(default="prompt", pattern=NAME_PATTERN)
    """Names the result."""
    runs_dir: Path = Path("runs")
    """Directory of pre-training runs and of the tracking store."""
    task: PromptedTask  # pyright: ignore[reportInvalidTypeForm]
    """The task: a kind of classification, and where its files lie."""
    templates: tuple[str, ...] = Field(min_length=1)
    """Texts with `[x]` for the text of an example, `[y]` for the second text of a pair, and `[z]` for the answer."""
    verbalizers: dict[str, str] = Field(min_length=2)
    """The answer for each label, by its name or number; one or several tokens."""
    shots: int = Field(default=0, ge=0)
    """Demonstrations before the text, as many of each label as of the others; 0 for none."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """One draw of demonstrations for each; without demonstrations there is nothing to draw, and one run."""
    separator: str = "\n"
    """Between demonstrations, and before the text."""
    calibrate: bool = False
    """Divide the probability of each answer by its probability for texts without content (Zhao et al. 2021)."""
    scoring: Scoring = "left_to_right"
    """How a masked language model scores an answer of several tokens: `left_to_right` predicts each token with those
    before it filled in, `joint` predicts all of them from masks. Both take the mean log-probability."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens of a prompt; texts are cut to fit. null takes what the network takes."""
    batch_tokens: int = Field(default=8192, gt=0)
    """Tokens in one forward pass, padding included."""
    max_examples: int | None = Field(default=None, gt=0)
    """Evaluation examples, a fixed random sample; null takes all."""

    @field_validator("verbalizers", mode="before")
    @classmethod
    def _names(cls, given: object) -> object:
        # YAML reads the labels 0 and 1 as numbers.
        return {str(key): value for key, value in given.items()} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _sound(self) -> PromptConfig:
        problems = []
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            message = "must be different and not negative"
            problems.append(ConfigProblem("seeds", str(list(self.seeds)), message))
        answers = Counter(answer.strip() for answer in self.verbalizers.values())
        if twice := [answer for answer, count in answers.items() if count > 1 or not answer]:
            message = f"each label needs an answer of its own, and {twice[0]!r} is none"
            problems.append(ConfigProblem("verbalizers", str(self.verbalizers), message))
        if problems:
            raise SettingsMisfit(problems)
        return self


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
