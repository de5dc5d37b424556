"""RACE: which of four answers is right, by the passage of an English exam? (Lai et al. 2017; Liu et al. 2019, section
5.3).

87,866 training, 4,887 development and 4,934 test questions in the official release.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from cluster.artefacts.errors import MissingInputError
from pipeline.tune.files.evaluation_set import EvaluationSet, Files, texts_of
from pipeline.tune.files.lines import wrong_file
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.task import TaskData, folder_input

ORIGIN = "the contents of RACE.tar.gz (www.cs.cmu.edu/~glai1/data/race)"
LETTERS = "ABCD"
BLANK = "_"
SCHOOLS = ("middle", "high")


def read_examples(path: Path) -> Iterator[Choices]:
    """Stream the questions of one passage: the passage, and the question with each answer, or its blanks filled.

    Raises:
        ConfigError: the file is not as the release has it.
    """
    try:
        found = orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))
        article = " ".join(found["article"].split())
        asked = zip(found["questions"], found["options"], found["answers"], strict=True)
        for number, (question, options, answer) in enumerate(asked):
            pairs = tuple((article, _filled(question, option)) for option in options)
            label = [*LETTERS[: len(pairs)]].index(answer)
            yield Choices(f"{path.stem}-{number}", pairs, label, path.parent.name)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise wrong_file(f"{path} is not JSON as RACE has it: {error!r}") from None


class RaceConfig(ChoicesTaskConfig):
    """Reading comprehension from exams of middle and high schools."""

    kind: Literal["race"] = "race"
    path: Path
    """The unpacked folder `RACE`, with train/, dev/ and test/, each with middle/ and high/."""
    split: Literal["dev", "test"] = "dev"
    """The part to score on."""

    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "race",
            tuple(
                Files(
                    (f"race/{split}/*/*.txt",),
                    texts_of(lambda path: ((e.id, e.texts) for e in read_examples(path))),
                )
                for split in ("dev", "test")
            ),
            ORIGIN,
        ),
    )

    def load(self) -> TaskData[Choices]:
        """Read the passages of both parts."""
        parts = [self._passages(split) for split in ("train", self.split)]
        train, evaluation = ([each for path in paths for each in read_examples(path)] for paths in parts)
        splits = zip(("train", self.split), parts, strict=True)
        inputs = [folder_input(self.path / split, paths) for split, paths in splits]
        return TaskData.of_files(train, evaluation, inputs)

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Accuracy on all questions, and on those of each kind of school."""
        found = super().measure(examples, outputs)
        for school in SCHOOLS:
            rows = [number for number, each in enumerate(examples) if each.group == school]
            if rows:
                measured = super().measure([examples[number] for number in rows], outputs[rows])
                found[f"accuracy_{school}"] = measured["accuracy"]
        return found

    def _passages(self, split: str) -> list[Path]:
        paths = sorted((self.path / split).glob("*/*.txt"))
        if not paths:
            raise MissingInputError(
                f"There are no passages {self.path / split}/*/*.txt.",
                next_step=f"put {ORIGIN} there, or correct the task's `path`",
            )
        return paths


def _filled(question: str, option: str) -> str:
    # All blanks, as in the released preprocessing (fairseq, examples/roberta/preprocess_RACE.py).
    return question.replace(BLANK, option) if BLANK in question else f"{question} {option}"
