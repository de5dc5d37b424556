"""SQuAD 1.1: which span of the passage answers? (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import InputEntry, hash_file
from pipeline.finetune.tasks.base import Answer, Question, SpanTaskConfig, TaskData

METRICS = ("f1", "exact_match")
_ORIGIN = "train-v1.1.json and dev-v1.1.json of SQuAD (rajpurkar.github.io/SQuAD-explorer)"


class SquadConfig(SpanTaskConfig):
    """The Stanford Question Answering Dataset."""

    kind: Literal["squad"] = "squad"
    train: Path
    """The official json to learn from."""
    evaluation: Path
    """The official json to score on."""


def load(config: SquadConfig) -> TaskData[Question]:
    """87,599 training and 10,570 evaluation questions in the official release.

    Raises:
        MissingInputError: a file is missing.
        ConfigError: a file is not SQuAD's json, or an answer is not where the file says.
    """
    train, evaluation = _questions(config.train), _questions(config.evaluation)
    return TaskData(
        train=train,
        evaluation=evaluation,
        labels=(),
        inputs=tuple(
            InputEntry(kind="source-file", uri=str(path), fingerprint=hash_file(path)[0])
            for path in (config.train, config.evaluation)
        ),
    )


def read_questions(path: Path) -> Iterator[Question]:
    """Stream the questions of one file; those about one passage share its text."""
    if not path.is_file():
        raise MissingInputError(
            f"There is no {path}.",
            next_step=f"put {_ORIGIN} there, or correct the task's `train` and `evaluation`",
        )
    try:
        articles = orjson.loads(path.read_bytes())["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    yield _question(path, paragraph["context"], entry)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not JSON as SQuAD has it: {error!r}.", next_step=f"compare it with {_ORIGIN}"
        ) from None


def _questions(path: Path) -> tuple[Question, ...]:
    found = tuple(read_questions(path))
    if not found:
        raise ConfigError(f"{path} has no questions.", next_step=f"compare it with {_ORIGIN}")
    return found


def _question(path: Path, context: str, entry: dict[str, Any]) -> Question:
    answers = tuple(Answer(found["text"], found["answer_start"]) for found in entry["answers"])
    for answer in answers:
        if context[answer.start : answer.start + len(answer.text)] != answer.text:
            raise _wrong(path, entry, f"the answer {answer.text!r} is not at character {answer.start}")
    if not answers:
        raise _wrong(path, entry, "there is no answer, as only SQuAD 2.0 allows it")
    return Question(entry["id"], entry["question"], context, answers)


def _wrong(path: Path, entry: dict[str, Any], problem: str) -> ConfigError:
    return ConfigError(
        f"{path}, question {entry['id']}: {problem}.", next_step=f"compare the file with {_ORIGIN}"
    )
