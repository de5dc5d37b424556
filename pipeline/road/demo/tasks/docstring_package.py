"""Which Python package does this docstring sentence come from? Made from documents held out of pre-training.

Needs documents whose `meta` names a `package`, as the source `python_docs` gives them. Topic classification
with few labels: even a short pre-training should help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.road.demo.tasks.held_out_sentences import (
    HeldOutTaskConfig,
    Sentence,
    read_sentences,
    too_few,
)
from pipeline.tune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.tune.task import TaskData

MASKED_NAME = "PACKAGE"
"""Stands in the text wherever one of the packages was named, the right one or another."""
ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "sklearn": ("scikit-learn", "scikit"),
    "tensorflow": ("tf",),
    "torch": ("pytorch",),
}
"""Other names by which sentences give a package away."""


class DocstringPackageConfig(HeldOutTaskConfig, ClassificationTaskConfig):
    """Classification of docstring sentences by package; all packages are equally frequent."""

    kind: Literal["docstring_package"] = "docstring_package"
    packages: int = Field(default=9, ge=2)
    """Number of classes: the packages with the most held-out sentences."""

    metrics = ("accuracy", "macro_f1")

    def load(self) -> TaskData[Example]:
        """Make the examples; equal counts per package, up to the rest of the division.

        Raises:
            ConfigError: the documents name no packages, or the packages have too few sentences.
        """
        sentences = read_sentences(self)
        train, evaluation = _by_package(sentences.train), _by_package(sentences.evaluation)
        # The size of a package is that of its smaller side, relative to the examples that this side needs.
        sizes = {
            package: min(
                len(train[package]) / self.train_examples,
                len(evaluation.get(package, ())) / self.evaluation_examples,
            )
            for package in train
        }
        labels = tuple(sorted(sorted(sizes, key=lambda package: (-sizes[package], package))[: self.packages]))
        if len(labels) < self.packages:
            raise too_few(self, f"sentences of {self.packages} packages are needed", f"{len(labels)}")
        hidden = _names_pattern(labels)
        return TaskData(
            train=_examples(train, labels, self.train_examples, hidden, self),
            evaluation=_examples(evaluation, labels, self.evaluation_examples, hidden, self),
            labels=labels,
            inputs=sentences.inputs,
        )


def _by_package(sentences: Iterable[Sentence]) -> dict[str, list[Sentence]]:
    grouped: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        if not (package := sentence.meta.get("package")):
            raise ConfigError(
                f"The document of sentence {sentence.id} has no `package` in its meta.",
                next_step="use a token store made from the source `python_docs`",
            )
        grouped.setdefault(package, []).append(sentence)
    return grouped


def _examples(
    grouped: dict[str, list[Sentence]],
    labels: Sequence[str],
    count: int,
    hidden: re.Pattern[str],
    config: DocstringPackageConfig,
) -> tuple[Example, ...]:
    """`count` examples; the first `count % len(labels)` packages give one more than the others."""
    chosen: list[tuple[int, Example]] = []
    for label, package in enumerate(labels):
        share = count // len(labels) + (label < count % len(labels))
        found = grouped.get(package, [])
        if len(found) < share:
            raise too_few(config, f"{share} sentences of {package} are needed on one side", f"{len(found)}")
        chosen += [
            (sentence.draw, Example(sentence.id, hidden.sub(MASKED_NAME, sentence.text), None, label))
            for sentence in found[:share]
        ]
    return tuple(example for _, example in sorted(chosen, key=lambda pair: (pair[0], pair[1].id)))


def _names_pattern(packages: Iterable[str]) -> re.Pattern[str]:
    """Matches the packages' names in any case, but not inside other words (`ray` in `array`)."""
    names = {name for package in packages for name in (package, *ALIASES.get(package, ()))}
    listed = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<![A-Za-z])(?:{listed})(?![A-Za-z])", re.IGNORECASE)
