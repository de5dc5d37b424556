"""Published multiple choice.

SWAG: what happens next? (Zellers et al. 2018; Devlin et al. 2019, section 4.4). 73,546 training and 20,006 evaluation
situations in the official release.

RACE: which of four answers is right, by the passage of an English exam? (Lai et al. 2017; Liu et al. 2019, section
5.3). 87,866 training, 4,887 development and 4,934 test questions in the official release.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from cluster.artefacts.errors import MissingInputError
from pipeline.tasks.files.lines import require_file, wrong_file
from pipeline.tasks.files.rows import read_rows
from pipeline.tasks.forms import Choices, ChoicesTaskConfig
from pipeline.tasks.task import EvaluationSet, TaskData, folder_input, texts_of

SWAG_ORIGIN = "train.csv and val.csv of SWAG (github.com/rowanz/swagaf)"
NUM_ENDINGS = 4
SWAG_COLUMNS = ("sent1", "sent2", *(f"ending{number}" for number in range(NUM_ENDINGS)), "label")


def read_swag(path: Path) -> Iterator[Choices]:
    """Stream the situations of a file: the first sentence, and the begin of the second with each ending.

    Raises:
        ConfigError: a column is missing, or a label is no number of an ending.
    """
    for row in read_rows(path):
        if missing := [column for column in SWAG_COLUMNS if column not in row.values]:
            raise row.error(f"there is no column `{missing[0]}` among {list(row.values)}")
        first, begin, *endings, label = (row.values[column] for column in SWAG_COLUMNS)
        if label not in map(str, range(NUM_ENDINGS)):
            raise row.error(f"the label is {label!r}, not from 0 to {NUM_ENDINGS - 1}")
        yield Choices(row.name, tuple((first, f"{begin} {ending}") for ending in endings), int(label))


class SwagConfig(ChoicesTaskConfig):
    """Situations With Adversarial Generations."""

    kind: Literal["swag"] = "swag"
    path: Path
    """The folder with train.csv and val.csv."""

    metrics = ("accuracy",)
    evaluation_sets = (EvaluationSet("swag", SWAG_ORIGIN, texts_of(read_swag), ("swag/val.csv",)),)

    def load(self) -> TaskData[Choices]:
        """Read `train.csv` and `val.csv`."""
        paths = [require_file(self.path / name, SWAG_ORIGIN, "`path`") for name in ("train.csv", "val.csv")]
        train, evaluation = ([*read_swag(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths)


RACE_ORIGIN = "the contents of RACE.tar.gz (www.cs.cmu.edu/~glai1/data/race)"
LETTERS = "ABCD"
BLANK = "_"
SCHOOLS = ("middle", "high")


def read_race(path: Path) -> Iterator[Choices]:
    """Stream the questions of one passage: the passage, and the question with each answer, or its blanks filled.

    Raises:
        ConfigError: the file is not as the release has it.
    """
    try:
        found = orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))
        article = " ".join(found["article"].split())
        asked = zip(found["questions"], found["options"], found["answers"], strict=True)
        for number, (question, options, answer) in enumerate(asked):
            # All blanks, as in the released preprocessing (fairseq, examples/roberta/preprocess_RACE.py).
            pairs = tuple(
                (article, question.replace(BLANK, each) if BLANK in question else f"{question} {each}")
                for each in options
            )
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
        EvaluationSet("race", RACE_ORIGIN, texts_of(read_race), ("race/dev/*/*.txt", "race/test/*/*.txt")),
    )

    def load(self) -> TaskData[Choices]:
        parts = {split: sorted((self.path / split).glob("*/*.txt")) for split in ("train", self.split)}
        for split, paths in parts.items():
            if not paths:
                raise MissingInputError(
                    f"There are no passages {self.path / split}/*/*.txt.",
                    next_step=f"put {RACE_ORIGIN} there, or correct the task's `path`",
                )
        train, evaluation = ([each for path in paths for each in read_race(path)] for paths in parts.values())
        inputs = [folder_input(self.path / split, paths) for split, paths in parts.items()]
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
