"""A task, prompted with every template and every draw of demonstrations."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax

from cluster.artefacts.errors import ConfigError
from pipeline.ask.config import PromptConfig
from pipeline.ask.prompting.networks import LanguageModel
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.config.problems import nearest
from pipeline.tasks.forms import Example
from pipeline.tune.trials import example_order, sample_examples


def draw_demonstrations(examples: Sequence[Example], num_labels: int, shots: int, seed: int) -> list[Example]:
    """Draw examples, as many of each label as of the others (one more of the first labels where `shots` does not
    divide), in random order; a function of the seed and the examples.

    Raises:
        ConfigError: there are fewer examples of a label than are drawn.
    """
    order = example_order(seed, 0, len(examples)).tolist()
    wanted = [shots // num_labels + (label < shots % num_labels) for label in range(num_labels)]
    drawn = []
    for number in order:
        label = int(examples[number].label)
        if wanted[label]:
            wanted[label] -= 1
            drawn.append(examples[number])
    if any(wanted):
        fewest = min(sum(example.label == label for example in examples) for label in range(num_labels))
        raise ConfigError(
            f"{shots} demonstrations need more examples of a label than the {len(examples)} training examples have.",
            next_step=f"shots={fewest * num_labels}",
        )
    return drawn


CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts without content, as in the paper's released code."""


def prior(prompter: Prompter, is_pair: bool, batch_tokens: int) -> np.ndarray:
    """float64 [labels]: the mean probability of each answer for texts without content, as shares of all answers. A
    masked language model is not given `[MASK]`, which would be a second place to fill."""
    contents = [text for text in CONTENT_FREE if prompter.network.kind != "masked" or text != "[MASK]"]
    scores = prompter.scores([(text, text if is_pair else None) for text in contents], batch_tokens)
    return np.exp(log_softmax(scores.astype(np.float64), axis=1)).mean(0)


def calibrated(scores: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """float32 [texts, labels]: log-probabilities of answers, float32 [texts, labels], less the logarithms of their
    probabilities without content (W = diag(p)^-1, b = 0 in the paper)."""
    shares = log_softmax(scores.astype(np.float64), axis=1)
    return (shares - np.log(np.maximum(probabilities, 1e-12))).astype(np.float32)


Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class PromptScore:
    """The metrics of one template with one draw of demonstrations."""

    template: str
    seed: int | None
    """None without demonstrations."""
    metrics: Metrics
    """As shares of 1; after calibration, where that was asked for."""
    uncalibrated: Metrics | None = None
    """Without calibration; None where there is none."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over several runs."""

    mean: float
    std: float | None
    """Sample standard deviation (n - 1); None of a single run."""
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Spread of the scores of one run or several."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, min(values), max(values))


@dataclass(frozen=True, slots=True)
class PromptResult:
    """All runs of a configuration."""

    task: str
    reference: str
    main_metric: str
    num_examples: int
    shots: int
    scores: tuple[PromptScore, ...]
    majority: Metrics
    """The metrics of the most frequent training label, whatever the text."""

    def of_template(self, template: str) -> Spread:
        """The main metric of one template, over seeds."""
        return Spread.of(
            [each.metrics[self.main_metric] for each in self.scores if each.template == template]
        )

    @property
    def overall(self) -> Spread:
        """The main metric over templates and seeds."""
        return Spread.of([each.metrics[self.main_metric] for each in self.scores])


def prompt_task(config: PromptConfig, network: LanguageModel) -> PromptResult:
    """Ask a network for the answers of a task, without training it.

    Raises:
        MissingInputError, ConfigError: the task cannot be read; a label has no answer, or an unknown one has; a
            template does not fit the task or the network.
        MismatchError: template and demonstrations are too long for the network.
    """
    task: Any = config.task
    templates = [Template(text) for text in config.templates]
    data = task.load()
    official = getattr(task, "labels", None) or ()
    answers = answers_of(config.verbalizers, data.labels, official)
    examples = [data.evaluation[n] for n in sample_examples(len(data.evaluation), config.max_examples)]
    texts, is_pair = [(each.text_a, each.text_b) for each in examples], examples[0].text_b is not None
    for template in templates:
        template.check_task(is_pair)
    scores = []
    for template in templates:
        for seed, shown in _draws(config, template, data.train, answers):
            limit = min(config.max_length or network.max_length, network.max_length)
            prompter = Prompter(network, template, answers, shown, config.scoring, limit)
            outputs = prompter.scores(texts, config.batch_tokens)
            metrics, uncalibrated = task.measure(examples, outputs), None
            if config.calibrate:
                outputs = calibrated(outputs, prior(prompter, is_pair, config.batch_tokens))
                metrics, uncalibrated = task.measure(examples, outputs), metrics
            scores.append(PromptScore(template.text, seed, metrics, uncalibrated))
    majority = Counter(int(example.label) for example in data.train).most_common(1)[0][0]
    constant = np.tile(np.eye(len(answers), dtype=np.float32)[majority], (len(examples), 1))
    return PromptResult(
        task=task.kind,
        reference=network.reference,
        main_metric=task.metrics[0],
        num_examples=len(examples),
        shots=config.shots,
        scores=tuple(scores),
        majority=task.measure(examples, constant),
    )


def answers_of(
    verbalizers: Mapping[str, str], labels: Sequence[str], official: Sequence[str] = ()
) -> tuple[str, ...]:
    """The answer of each label, in the order of their numbers.

    Args:
        verbalizers: answers by the name of a label, by its name in the official files, or by its number.
        official: names in the official files.

    Raises:
        ConfigError: a label is unknown to the task, or has no answer.
    """
    numbers = {str(number): number for number in range(len(labels))}
    numbers |= {name: number for number, name in enumerate(official)}
    numbers |= {name: number for number, name in enumerate(labels)}
    known = ", ".join(f"{name} ({number})" for number, name in enumerate(labels))
    if unknown := [label for label in verbalizers if label not in numbers]:
        near = nearest(unknown[0], list(numbers))
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(f"The task has no label {unknown[0]!r}.", next_step=f"{hint}its labels are {known}")
    found = {numbers[label]: answer for label, answer in verbalizers.items()}
    if missing := [name for number, name in enumerate(labels) if number not in found]:
        raise ConfigError(
            f"The verbalizer has no answer for {', '.join(missing)}.",
            next_step=f"give one for each label: {known}",
        )
    return tuple(found[number] for number in range(len(labels)))


def _draws(
    config: PromptConfig, template: Template, examples: Sequence[Example], answers: Sequence[str]
) -> Iterator[tuple[int | None, str]]:
    """Seeds, and the demonstrations that they draw, as text."""
    if not config.shots:
        yield None, ""
        return
    for seed in config.seeds:
        drawn = draw_demonstrations(examples, len(answers), config.shots, seed)
        texts = [template.answered(example, answers[int(example.label)].strip()) for example in drawn]
        yield seed, "".join(text + config.separator for text in texts)
