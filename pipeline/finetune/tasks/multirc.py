"""MultiRC: is the answer right, by the paragraph? Questions have several right answers (Khashabi et al. 2018;
SuperGLUE, Wang et al. 2019b).

5,100 training and 953 evaluation questions in the official release, with 27,243 and 4,848 answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.finetune.files.lines import read_objects, wrong_line
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.tasks.superglue import SuperGlueFiles, SuperGlueTaskConfig, label_in

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
                    yield Example(
                        f"{name}-{number}-{answer['idx']}", passage["text"], asked, label, f"{name}-{number}"
                    )
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
        from pipeline.finetune.metrics.f1 import f1

        labels, predicted = np.array([each.label for each in examples]), self.predictions(outputs)
        _, question = np.unique([each.group for each in examples], return_inverse=True)
        wrong = np.bincount(question, labels != predicted)
        return {"f1_answers": f1(labels, predicted), "exact_match": float(np.mean(wrong == 0))}
