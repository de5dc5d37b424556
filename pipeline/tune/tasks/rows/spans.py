"""One's own rows with questions that a span of a passage answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipeline.config.loading import Config
from pipeline.tune.files.rows import Row
from pipeline.tune.forms.spans.settings import Answer, Question, SpanTaskConfig
from pipeline.tune.tasks.rows.base import RowsTaskConfig, name_of, rows_of, text_in, value_of


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

    def examples(self, path: Path) -> Iterator[Question]:
        """The questions of a file, with their answers at their places."""
        columns = self.columns
        for row in rows_of(path):
            context = text_in(row, "context", columns.context)
            texts, starts = _given(row, columns)
            answers = tuple(_answer(row, context, *each) for each in zip(texts, starts, strict=True))
            if not answers:
                remedy = "leave the row out; questions without an answer are learnt by the task squad2"
                raise row.error("there is no answer", remedy)
            yield Question(
                name_of(row, columns.id), text_in(row, "question", columns.question), context, answers
            )


def _given(row: Row, columns: SpanColumns) -> tuple[list[Any], list[Any]]:
    """The texts of the answers, and where they begin, None where that is not said."""
    value = value_of(row, "answer", columns.answer)
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
    else:
        texts = value if isinstance(value, list) else [value]
        found = None if columns.start is None else value_of(row, "start", columns.start)
        starts = [None] * len(texts) if found is None else found if isinstance(found, list) else [found]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        remedy = "give a text, a list of texts, or lists `text` and `answer_start` of one length"
        raise row.error(f"the answers {value!r} cannot be read", remedy)
    return texts, starts


def _answer(row: Row, context: str, text: Any, start: Any) -> Answer:
    """The answer at its place.

    Raises:
        ConfigError: it is no text, is empty, or is not there.
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
