"""COPA: which alternative is the cause, or the effect? (Roemmele et al. 2011; SuperGLUE, Wang et al. 2019b).

400 training and 100 evaluation questions in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.tune.files.lines import read_objects, text_of, wrong_line
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.tasks.superglue import (
    SuperGlueFiles,
    SuperGlueTaskConfig,
    id_in,
    label_in,
    submission_file,
)

QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def read_examples(path: Path) -> Iterator[Choices]:
    """Stream the questions of a file: the premise with question and alternative.

    Raises:
        ConfigError: a line is not as the release has it.
    """
    for name, found in read_objects(path):
        premise, first, second, asked = (
            text_of(path, name, found, key) for key in ("premise", "choice1", "choice2", "question")
        )
        if asked not in QUESTIONS:
            raise wrong_line(path, name, f"`question` is {asked!r}, not one of {', '.join(QUESTIONS)}")
        label = label_in(path, name, found, ("0", "1"))
        pairs = tuple((premise, f"{QUESTIONS[asked]} {choice}") for choice in (first, second))
        yield Choices(id_in(path, name, found), pairs, label)


FILES = SuperGlueFiles("COPA", read_examples)


class CopaConfig(SuperGlueTaskConfig, ChoicesTaskConfig):
    """Choice of Plausible Alternatives."""

    kind: Literal["copa"] = "copa"

    files = FILES
    metrics = ("accuracy",)
    evaluation_sets = (FILES.evaluation_set("copa"),)

    def submission(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, bytes]:
        """The number of the chosen alternative, 0 or 1, for every question of the test set."""
        chosen = outputs.argmax(-1).tolist()
        return {"COPA.jsonl": submission_file((each.id, n) for each, n in zip(examples, chosen, strict=True))}
