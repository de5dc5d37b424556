"""Tasks on one's own rows with a question, which one of several choices or a span of a passage answers."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.config.loading import Config
from pipeline.tasks.files.rows import Row
from pipeline.tasks.forms import Answer, Choices, ChoicesTaskConfig, Question, SpanTaskConfig
from pipeline.tasks.rows import RowsTaskConfig


class ChoiceColumns(Config):
    """Names of the columns."""

    question: str = "question"
    """The question, or the beginning that the choices continue."""
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

    def example(self, row: Row, labels: tuple[str, ...]) -> Choices:
        """The question with its choices; a context precedes the question."""
        columns, named = self.columns, self.columns.choices
        first = row.text("question", columns.question)
        if isinstance(named, tuple):
            choices = [row.text("choices", column) for column in named]
        else:
            choices = row.value("choices", named)
            is_list = isinstance(choices, list) and len(choices) >= 2
            if not is_list or not all(isinstance(each, str) for each in choices):
                remedy = "set columns.choices to a column of lists, or to a list of columns"
                raise row.error(
                    f"the column `{named}` holds {choices!r}, no list of two or more texts", remedy
                )
        seconds = choices
        if columns.context is not None:
            question, first = first, row.text("context", columns.context)
            seconds = [f"{question} {choice}" for choice in choices]
        pairs = tuple((first, second) for second in seconds)
        return Choices(row.id(columns.id), pairs, _right_choice(row, columns.label, choices))


def _right_choice(row: Row, column: str, choices: list[str]) -> int:
    """The right choice; numbers that are no texts count from 0."""
    label = row.label(column)
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


class SpanColumns(Config):
    """Names of the columns."""

    question: str = "question"
    """The question."""
    context: str = "context"
    """The passage."""
    answer: str = "answers"
    """The answer; or a list of answers that count as right; or, as the Hugging Face Hub keeps SQuAD, an object with
    lists `text` and `answer_start`."""
    start: str | None = None
    """The character of the passage that the answer begins at, from 0; null takes the first place where it occurs."""
    id: str | None = None
    """Names of questions in the predictions; null takes file and line."""


class RowsSpansConfig(RowsTaskConfig, SpanTaskConfig):
    """Question answering by spans of one's own passages."""

    kind: Literal["rows_spans"] = "rows_spans"
    columns: SpanColumns = SpanColumns()
    """Names of the columns."""

    metrics = ("f1", "exact_match")

    def example(self, row: Row, labels: tuple[str, ...]) -> Question:
        """The question, with its answers at their places."""
        columns = self.columns
        context = row.text("context", columns.context)
        value = row.value("answer", columns.answer)
        if isinstance(value, dict):
            texts, starts = value.get("text"), value.get("answer_start")
        else:
            texts = value if isinstance(value, list) else [value]
            found = None if columns.start is None else row.value("start", columns.start)
            starts = [None] * len(texts) if found is None else found if isinstance(found, list) else [found]
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            remedy = "give a text, a list of texts, or lists `text` and `answer_start` of one length"
            raise row.error(f"the answers {value!r} cannot be read", remedy)
        answers = tuple(_answer(row, context, *each) for each in zip(texts, starts, strict=True))
        if not answers:
            remedy = "leave the row out; questions without an answer are learnt by the task squad2"
            raise row.error("there is no answer", remedy)
        return Question(row.id(columns.id), row.text("question", columns.question), context, answers)


def _answer(row: Row, context: str, text: Any, start: Any) -> Answer:
    """The answer at its place.

    Raises:
        ConfigError: it is no text, is empty, or does not exist.
    """
    remedy = "copy the answer from its passage letter by letter, or leave the row out"
    if not isinstance(text, str) or not text.strip():
        raise row.error(f"the answer {text!r} is no text", remedy)
    if start is None:
        place = context.find(text)
        if place < 0:
            raise row.error(f"the answer {text!r} does not occur in its passage", remedy)
        return Answer(text, place)
    try:
        place = int(start)
    except (TypeError, ValueError):
        raise row.error(
            f"the place {start!r} of the answer is no number", "count characters from 0"
        ) from None
    if place < 0 or context[place : place + len(text)] != text:
        raise row.error(f"the answer {text!r} is not at character {place}", "count characters from 0")
    return Answer(text, place)
