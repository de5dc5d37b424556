"""Question answering in SQuAD's JSON: SQuAD 1.1 and 2.0, XQuAD."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.lines import wrong_file
from pipeline.tune.forms.spans.settings import Answer, Question

ORIGIN = "SQuAD (rajpurkar.github.io/SQuAD-explorer)"


def read_paragraphs(path: Path) -> Iterator[tuple[str, str, list[Question]]]:
    """Stream the paragraphs of one file: name (`TITLE#NUMBER`, counted per article from 0), context, questions.

    Raises:
        ConfigError: the file is not SQuAD's JSON.
    """
    try:
        for article in orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))["data"]:
            for number, paragraph in enumerate(article["paragraphs"]):
                context = paragraph["context"]
                questions = [_question(context, entry) for entry in paragraph["qas"]]
                yield f"{article.get('title')}#{number}", context, questions
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise wrong_file(f"{path} is not JSON as SQuAD has it: {error!r}") from None


def read_squad_texts(path: Path) -> Iterator[NamedText]:
    """Contexts, named by their paragraphs, and questions, named by their ids."""
    for name, context, questions in read_paragraphs(path):
        yield name, context
        yield from ((question.id, question.question) for question in questions)


def squad_evaluation_set(name: str, pattern: str) -> EvaluationSet:
    """The contexts and questions of the files that match a pattern."""
    return EvaluationSet(name, (Files((pattern,), read_squad_texts),), ORIGIN)


def _question(context: str, entry: dict[str, Any]) -> Question:
    answers = tuple(Answer(found["text"], found["answer_start"]) for found in entry.get("answers", ()))
    return Question(str(entry["id"]), entry["question"], context, answers)
