"""The files and the columns of one's own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.samples.noise import Noise
from pipeline.tune.files.lines import require_file
from pipeline.tune.files.rows import SUFFIXES, Row, read_rows
from pipeline.tune.task import TaskConfig, TaskData


class Named(Protocol):
    """An example with a name."""

    @property
    def id(self) -> str: ...


ExampleT = TypeVar("ExampleT", bound=Named)


class RowsTaskConfig(TaskConfig):
    """Settings that tasks on one's own rows share."""

    train: Path
    """The file to learn from: .csv, .tsv (no quoting), .jsonl, .json (objects in lines, or in one list), all these also
    gzipped (.gz); or .parquet."""
    evaluation: Path | None = None
    """The file to score on, likewise; null scores on a share of `train` and learns from the rest."""
    evaluation_share: float = Field(default=0.1, gt=0, lt=1)
    """Without `evaluation`: the share of the rows of `train` to score on, drawn by a hash of their names."""

    evaluation_sets = ()

    def load(self) -> TaskData[Any]:
        """Read the files."""
        return TaskData.of_files(*self.sides(self.examples), self.files)

    def examples(self, path: Path) -> Iterable[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def sides(self, read: Callable[[Path], Iterable[ExampleT]]) -> tuple[list[ExampleT], list[ExampleT]]:
        """The examples to learn from, and those to score on.

        Args:
            read: the examples of a file.

        Raises:
            ConfigError: there are too few rows to score on some of them.
        """
        train = [*read(self.train)]
        if self.evaluation is not None:
            return train, [*read(self.evaluation)]
        sides: tuple[list[ExampleT], list[ExampleT]] = ([], [])
        for example in train:
            draw = float(Noise.of("rows-split", example.id).uniform())
            sides[draw < self.evaluation_share].append(example)
        if train and not sides[1]:
            raise ConfigError(
                f"None of the {len(train)} rows of {self.train} fell to the side to score on.",
                next_step="name a file of rows to score on as `evaluation`, or raise `evaluation_share`",
            )
        return sides

    @property
    def files(self) -> list[Path]:
        """The files that are read for learning and scoring."""
        return [path for path in (self.train, self.evaluation) if path is not None]


def rows_of(path: Path) -> Iterator[Row]:
    """Stream the rows of a file.

    Raises:
        MissingInputError: it is missing.
        ConfigError: it cannot be read; the line is named.
    """
    return read_rows(require_file(path, f"a file of rows ({SUFFIXES})", "`train` and `evaluation`"))


def value_of(row: Row, role: str, column: str) -> Any:
    """The value of a column; `role` is the setting that names it.

    Raises:
        ConfigError: there is no such column, or the row has no value there: null, or NaN, which pandas writes for it.
    """
    if column not in row.values:
        near = ", ".join(f"`{name}`" for name in row.values)
        raise row.error(
            f"there is no column `{column}`; there are {near}", f"set columns.{role} to one of them"
        )
    value = row.values[column]
    if value is None or value != value:
        raise row.error(f"the column `{column}` is empty", "fill it, or leave the row out")
    return value


def text_in(row: Row, role: str, column: str) -> str:
    """The text of a column; numbers are written as they are, truth values as `true` and `false`.

    Raises:
        ConfigError: there is no such column, or its value is no text.
    """
    value = value_of(row, role, column)
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        remedy = f"set columns.{role} to a column of texts"
        raise row.error(f"the column `{column}` holds {value!r}, no text", remedy)
    return str(value)


def label_in(row: Row, column: str) -> str:
    """The label of a row, as a text without white space around it: `1` for 1.0, too, since columns with empty rows are
    saved as such numbers.

    Raises:
        ConfigError: there is no such column, or it is empty.
    """
    value = value_of(row, "label", column)
    is_whole = isinstance(value, float) and value.is_integer()
    label = str(int(value)) if is_whole else text_in(row, "label", column).strip()
    if not label:
        remedy = "fill it, or leave the row out; rows without labels can be predicted as `test`"
        raise row.error(f"the column `{column}` is empty", remedy)
    return label


def list_in(row: Row, role: str, column: str) -> list[str]:
    """The texts of a column that holds a list, or texts separated by white space.

    Raises:
        ConfigError: there is no such column, or its value is neither.
    """
    value = value_of(row, role, column)
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
        remedy = f"set columns.{role} to a column of lists, or of words with spaces between them"
        raise row.error(f"the column `{column}` holds {value!r}, no list of texts", remedy)
    return [str(each) for each in value]


def name_of(row: Row, column: str | None) -> str:
    """The name of an example: its column, or file and line."""
    return row.name if column is None else text_in(row, "id", column)
