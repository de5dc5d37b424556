"""Question answering in MRQA's layout: gzipped JSON lines, a passage with its questions each, behind a header."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from pipeline.finetune.files.evaluation_set import NamedText
from pipeline.finetune.files.lines import wrong_file, wrong_line
from pipeline.finetune.forms.spans.settings import Answer, Question

ORIGIN = "a file of the MRQA 2019 shared task (github.com/mrqa/MRQA-Shared-Task-2019)"


def read_passages(path: Path) -> Iterator[tuple[str, str, list[Question]]]:
    """Stream the passages of one file, gzipped or plain: name (such as `NewsQA-17`), text, questions.

    Answers are the passage's characters at the places that the file found (`detected_answers`); the texts that count as
    right are those of `answers`, as in the shared task's evaluation.

    Raises:
        ConfigError: the file is damaged, or a line is not as described.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                found = _object(path, number, line)
                if "header" not in found:
                    yield f"{path.name.partition('.')[0]}-{number}", *_passage(path, number, found)
    except (OSError, EOFError, zlib.error) as error:
        raise wrong_file(f"{path} cannot be decompressed: {error}") from None


def read_mrqa_texts(path: Path) -> Iterator[NamedText]:
    """Passages, named by their lines, and questions, named by their ids."""
    for name, context, questions in read_passages(path):
        yield name, context
        yield from ((question.id, question.question) for question in questions)


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise wrong_line(path, number, f"no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise wrong_line(path, number, "no JSON object")
    return found


def _passage(path: Path, number: int, found: dict[str, Any]) -> tuple[str, list[Question]]:
    try:
        context = found["context"]
        return context, [_question(context, entry) for entry in found["qas"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise wrong_line(path, number, f"no passage as MRQA has it: {error!r}") from None


def _question(context: str, entry: dict[str, Any]) -> Question:
    spans = [span for answer in entry["detected_answers"] for span in answer["char_spans"]]
    answers = []
    # The last character of a span belongs to it.
    for first, last in spans:
        if not 0 <= first <= last < len(context):
            raise ValueError(f"question {entry['qid']}: characters {first} to {last} are not in the passage")
        answers.append(Answer(context[first : last + 1], first))
    return Question(str(entry["qid"]), entry["question"], context, tuple(answers), tuple(entry["answers"]))
