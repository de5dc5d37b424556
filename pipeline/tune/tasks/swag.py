"""SWAG: what happens next? (Zellers et al. 2018; Devlin et al. 2019, section 4.4).

73,546 training and 20,006 evaluation situations in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, texts_of
from pipeline.tune.files.lines import require_file
from pipeline.tune.files.rows import read_rows
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.task import TaskData

ORIGIN = "train.csv and val.csv of SWAG (github.com/rowanz/swagaf)"
NUM_ENDINGS = 4
COLUMNS = ("sent1", "sent2", *(f"ending{number}" for number in range(NUM_ENDINGS)), "label")


def read_examples(path: Path) -> Iterator[Choices]:
    """Stream the situations of a file: the first sentence, and the begin of the second with each ending.

    Raises:
        ConfigError: a column is missing, or a label is no number of an ending.
    """
    for row in read_rows(path):
        if missing := [column for column in COLUMNS if column not in row.values]:
            raise row.error(f"there is no column `{missing[0]}` among {list(row.values)}")
        first, begin, *endings, label = (row.values[column] for column in COLUMNS)
        if label not in map(str, range(NUM_ENDINGS)):
            raise row.error(f"the label is {label!r}, not from 0 to {NUM_ENDINGS - 1}")
        yield Choices(row.name, tuple((first, f"{begin} {ending}") for ending in endings), int(label))


class SwagConfig(ChoicesTaskConfig):
    """Situations With Adversarial Generations."""

    kind: Literal["swag"] = "swag"
    path: Path
    """The folder with train.csv and val.csv."""

    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "swag",
            (
                Files(
                    ("swag/val.csv",),
                    texts_of(lambda path: ((each.id, each.texts) for each in read_examples(path))),
                ),
            ),
            ORIGIN,
        ),
    )

    def load(self) -> TaskData[Choices]:
        """Read `train.csv` and `val.csv`."""
        paths = [require_file(self.path / name, ORIGIN, "`path`") for name in ("train.csv", "val.csv")]
        train, evaluation = ([*read_examples(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths)
