"""One's own rows with a question and texts to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.config.loading import Config
from pipeline.tune.files.rows import Row
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.tasks.rows.base import RowsTaskConfig, label_in, name_of, rows_of, text_in, value_of


class ChoiceColumns(Config):
    """Names of the columns."""

    question: str = "question"
    """The question, or the beginning that the choices go on from."""
    choices: str | tuple[str, ...] = "choices"
    """The column that holds a list of choices; or a list of columns, one for each choice."""
    label: str = "label"
    """The number of the right choice from 0, its letter from A, or its text."""
    context: str | None = None
    """A passage that the question is about; null where there is none."""
    id: str | None = None
    """Names of examples in the predictions; null takes file and line."""


class RowsChoicesConfig(RowsTaskConfig, ChoicesTaskConfig):
    """Multiple choice on one's own questions."""

    kind: Literal["rows_choices"] = "rows_choices"
    columns: ChoiceColumns = ChoiceColumns()
    """Names of the columns."""

    metrics = ("accuracy",)

    def examples(self, path: Path) -> Iterator[Choices]:
        """The questions of a file; a context stands before its question."""
        columns = self.columns
        for row in rows_of(path):
            question = text_in(row, "question", columns.question)
            choices = _choices_in(row, columns.choices)
            if columns.context is None:
                pairs = tuple((question, choice) for choice in choices)
            else:
                context = text_in(row, "context", columns.context)
                pairs = tuple((context, f"{question} {choice}") for choice in choices)
            yield Choices(name_of(row, columns.id), pairs, _label_in(row, columns.label, choices))


def _choices_in(row: Row, columns: str | tuple[str, ...]) -> list[str]:
    if isinstance(columns, tuple):
        return [text_in(row, "choices", column) for column in columns]
    found = value_of(row, "choices", columns)
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(each, str) for each in found):
        remedy = "set columns.choices to a column of lists, or to a list of columns"
        raise row.error(f"the column `{columns}` holds {found!r}, no list of two or more texts", remedy)
    return found


def _label_in(row: Row, column: str, choices: list[str]) -> int:
    """The right choice; numbers that are no texts count from 0."""
    label = label_in(row, column)
    numbers = [str(number) for number in range(len(choices))]
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    is_text = isinstance(row.values[column], str)
    found = {
        names.index(label)
        for names in ((numbers, letters, choices) if is_text else (numbers,))
        if label in names
    }
    if len(found) == 1:
        return found.pop()
    problem = f"the label in column `{column}` is {label!r}"
    if found:
        remedy = "give all labels as letters from A, or in JSON lines or Parquet as numbers from 0"
        raise row.error(f"{problem}, the text of one choice and the number or letter of another one", remedy)
    last = f"from 0 to {numbers[-1]}, from A to {letters[-1]}, or the text of a choice"
    raise row.error(problem, f"give a label {last}")
