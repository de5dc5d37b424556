"""Tasks of SuperGLUE on passages with several questions each (Wang et al. 2019b).

MultiRC: is the answer right, by the paragraph? Questions have several right answers (Khashabi et al. 2018). 5,100
training and 953 evaluation questions in the official release, with 27,243 and 4,848 answers.

ReCoRD: which entity of the news passage is left out of the query? (Zhang et al. 2018). 100,730 training and 10,000
evaluation queries in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.tasks.files.lines import json_lines, read_objects, wrong_line
from pipeline.tasks.forms import (
    UNLABELLED,
    Choices,
    ChoicesTaskConfig,
    ClassificationTaskConfig,
    Example,
)
from pipeline.tasks.superglue import TEST_FILE, SuperGlueFiles, SuperGlueTaskConfig, label_in

_MULTIRC_LABELS = ("wrong", "right")
PLACEHOLDER = "@placeholder"


def _read_multirc(path: Path) -> Iterator[Example]:
    """Stream the answers of a file, each with its paragraph and question; the group is the question."""
    for name, found in read_objects(path):
        try:
            passage = found["passage"]
            for number, question in enumerate(passage["questions"]):
                for answer in question["answers"]:
                    label = label_in(path, name, answer, _MULTIRC_LABELS)
                    asked = f"{question['question']} {answer['text']}"
                    group = f"{name}-{number}"
                    if label == UNLABELLED:
                        group = f"{found['idx']}-{question['idx']}"
                    yield Example(f"{group}-{answer['idx']}", passage["text"], asked, label, group)
        except (KeyError, TypeError) as error:
            raise wrong_line(path, name, f"no paragraph as MultiRC has it: {error!r}") from None


class MultircConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Multi-Sentence Reading Comprehension."""

    kind: Literal["multirc"] = "multirc"

    labels = _MULTIRC_LABELS
    files = SuperGlueFiles("MultiRC", _read_multirc)
    metrics = ("f1_answers", "exact_match")
    evaluation_sets = (files.evaluation_set("multirc"),)

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """F1 of right answers over all answers (F1a), and the share of the questions all of whose answers are judged
        rightly (EM)."""
        from pipeline.tasks.metrics import f1

        labels, predicted = np.array([each.label for each in examples]), self.predictions(outputs)
        _, question = np.unique([each.group for each in examples], return_inverse=True)
        wrong = np.bincount(question, labels != predicted)
        return {"f1_answers": f1(labels, predicted), "exact_match": float(np.mean(wrong == 0))}

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """A line for each paragraph of the test set, with every answer of every question, as the leaderboard nests
        them."""
        predicted = zip(examples, self.predictions(outputs).tolist(), strict=True)
        judged = [([int(part) for part in each.id.split("-")], label) for each, label in predicted]
        lines = []
        for passage, of_passage in groupby(judged, key=lambda row: row[0][0]):
            questions = [
                {"idx": question, "answers": [{"idx": ids[2], "label": label} for ids, label in answers]}
                for question, answers in groupby(of_passage, key=lambda row: row[0][1])
            ]
            lines.append({"idx": passage, "passage": {"questions": questions}})
        return {"MultiRC.jsonl": json_lines(lines)}


def _read_record(path: Path) -> Iterator[Choices]:
    """Stream the queries of a file: the passage with the query for each entity in its place."""
    for name, found in read_objects(path):
        try:
            passage = found["passage"]
            is_test = path.name == TEST_FILE
            yield from (_choices(name, passage, query, is_test=is_test) for query in found["qas"])
        except (KeyError, TypeError, ValueError) as error:
            raise wrong_line(path, name, f"no passage as ReCoRD has it: {error!r}") from None


def _choices(name: str, passage: dict[str, Any], query: dict[str, Any], *, is_test: bool) -> Choices:
    text = passage["text"]
    # The last character of an entity belongs to it.
    entities = tuple(dict.fromkeys(text[each["start"] : each["end"] + 1] for each in passage["entities"]))
    right = {answer["text"] for answer in query["answers"]} if not is_test else set(entities)
    accepted = tuple(number for number, entity in enumerate(entities) if entity in right)
    if not accepted or PLACEHOLDER not in query["query"]:
        raise ValueError(f"query {query['idx']} has no {'answer' if not accepted else PLACEHOLDER}")
    read = " ".join(text.split())
    pairs = tuple((read, query["query"].replace(PLACEHOLDER, entity)) for entity in entities)
    if is_test:
        return Choices(str(query["idx"]), pairs, UNLABELLED, answers=entities)
    return Choices(f"{name}-{query['idx']}", pairs, accepted[0], accepted=accepted, answers=entities)


class RecordConfig(SuperGlueTaskConfig, ChoicesTaskConfig):
    """Reading Comprehension with Commonsense Reasoning, as a choice among the passage's entities."""

    kind: Literal["record"] = "record"

    files = SuperGlueFiles("ReCoRD", _read_record)
    metrics = ("f1", "exact_match")
    evaluation_sets = (files.evaluation_set("record"),)

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Overlap in words, and equality, with the nearest answer, as SQuAD 1.1 measures them."""
        from pipeline.tasks.metrics.squad import answer_metrics

        right = [[each.answers[number] for number in each.accepted] for each in examples]
        chosen = zip(examples, self.predictions(outputs).tolist(), strict=True)
        return answer_metrics(right, [each.answers[number] for each, number in chosen])

    def submitted(self, example: Choices, number: int) -> str:
        """The text of the chosen entity."""
        return example.answers[number]
