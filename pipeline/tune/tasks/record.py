"""ReCoRD: which entity of the news passage is left out of the query? (Zhang et al. 2018; SuperGLUE, Wang et al. 2019b).

100,730 training and 10,000 evaluation queries in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.tune.files.lines import read_objects, wrong_line
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.forms.classification.settings import UNLABELLED
from pipeline.tune.tasks.superglue import TEST_FILE, SuperGlueFiles, SuperGlueTaskConfig, submission_file

PLACEHOLDER = "@placeholder"


def read_examples(path: Path) -> Iterator[Choices]:
    """Stream the queries of a file: the passage with the query for each entity in its place.

    Raises:
        ConfigError: a line is not as the release has it, or no entity of the passage is an answer.
    """
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


FILES = SuperGlueFiles("ReCoRD", read_examples)


class RecordConfig(SuperGlueTaskConfig, ChoicesTaskConfig):
    """Reading Comprehension with Commonsense Reasoning, as a choice among the passage's entities."""

    kind: Literal["record"] = "record"

    files = FILES
    metrics = ("f1", "exact_match")
    evaluation_sets = (FILES.evaluation_set("record"),)

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Overlap in words, and equality, with the nearest answer, as SQuAD 1.1 measures them."""
        from pipeline.tune.metrics.squad import answer_metrics

        right = [[each.answers[number] for number in each.accepted] for each in examples]
        chosen = outputs.argmax(-1).tolist()
        return answer_metrics(right, [each.answers[n] for each, n in zip(examples, chosen, strict=True)])

    def submission(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, bytes]:
        """The text of the chosen entity for every query of the test set."""
        chosen = outputs.argmax(-1).tolist()
        rows = ((each.id, each.answers[n]) for each, n in zip(examples, chosen, strict=True))
        return {"ReCoRD.jsonl": submission_file(rows)}
