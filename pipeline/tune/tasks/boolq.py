"""BoolQ: is the answer to the question, by the passage, yes? (Clark et al. 2019; SuperGLUE, Wang et al. 2019b).

9,427 training and 3,270 evaluation questions in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.tune.files.lines import read_objects, text_of
from pipeline.tune.forms.classification.settings import Example
from pipeline.tune.tasks.superglue import SuperGlueFiles, SuperGlueLabelsConfig, id_in, label_in

LABELS = ("no", "yes")


def read_examples(path: Path) -> Iterator[Example]:
    """Stream the examples of a file.

    Raises:
        ConfigError: a line is not as the release has it.
    """
    for name, found in read_objects(path):
        first, second = (text_of(path, name, found, key) for key in ("passage", "question"))
        yield Example(id_in(path, name, found), first, second, label_in(path, name, found, LABELS))


FILES = SuperGlueFiles("BoolQ", read_examples)


class BoolqConfig(SuperGlueLabelsConfig):
    """Boolean Questions."""

    kind: Literal["boolq"] = "boolq"

    files = FILES
    labels = LABELS
    submitted = ("false", "true")
    metrics = ("accuracy",)
    evaluation_sets = (FILES.evaluation_set("boolq"),)
