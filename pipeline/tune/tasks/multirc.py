"""MultiRC: is the answer right, by the paragraph? Questions have several right answers (Khashabi et al. 2018;
SuperGLUE, Wang et al. 2019b).

5,100 training and 953 evaluation questions in the official release, with 27,243 and 4,848 answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.tune.files.lines import json_lines, read_objects, wrong_line
from pipeline.tune.forms.classification.settings import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tune.tasks.superglue import SuperGlueFiles, SuperGlueTaskConfig, label_in

LABELS = ("wrong", "right")


def read_examples(path: Path) -> Iterator[Example]:
    """Stream the answers of a file, each with its paragraph and question; the group is the question.

    Raises:
        ConfigError: a line is not as the release has it.
    """
    for name, found in read_objects(path):
        try:
            passage = found["passage"]
            for number, question in enumerate(passage["questions"]):
                for answer in question["answers"]:
                    label = label_in(path, name, answer, LABELS)
                    asked = f"{question['question']} {answer['text']}"
                    group = f"{name}-{number}"
                    if label == UNLABELLED:
                        group = f"{found['idx']}-{question['idx']}"
                    yield Example(f"{group}-{answer['idx']}", passage["text"], asked, label, group)
        except (KeyError, TypeError) as error:
            raise wrong_line(path, name, f"no paragraph as MultiRC has it: {error!r}") from None


FILES = SuperGlueFiles("MultiRC", read_examples)


class MultircConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Multi-Sentence Reading Comprehension."""

    kind: Literal["multirc"] = "multirc"

    files = FILES
    labels = LABELS
    metrics = ("f1_answers", "exact_match")
    evaluation_sets = (FILES.evaluation_set("multirc"),)

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """F1 of right answers over all answers (F1a), and the share of the questions all of whose answers are judged
        rightly (EM)."""
        from pipeline.tune.metrics import f1

        labels, predicted = np.array([each.label for each in examples]), self.predictions(outputs)
        _, question = np.unique([each.group for each in examples], return_inverse=True)
        wrong = np.bincount(question, labels != predicted)
        return {"f1_answers": f1(labels, predicted), "exact_match": float(np.mean(wrong == 0))}

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """A line for each paragraph of the test set, with every answer of every question, as the leaderboard nests
        them."""
        predicted = self.predictions(outputs).tolist()
        judged = [
            ([int(part) for part in each.id.split("-")], label)
            for each, label in zip(examples, predicted, strict=True)
        ]
        return {
            "MultiRC.jsonl": json_lines(
                {"idx": passage, "passage": {"questions": _answered(rows)}}
                for passage, rows in groupby(judged, key=lambda row: row[0][0])
            )
        }


def _answered(rows: Iterable[tuple[list[int], int]]) -> list[dict[str, Any]]:
    return [
        {"idx": question, "answers": [{"idx": numbers[2], "label": label} for numbers, label in answers]}
        for question, answers in groupby(rows, key=lambda row: row[0][1])
    ]
