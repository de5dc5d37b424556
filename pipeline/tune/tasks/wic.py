"""WiC: does the word mean the same in both sentences? (Pilehvar and Camacho-Collados 2019; SuperGLUE, Wang et al.
2019b).

5,428 training and 638 evaluation pairs in the official release. The word stands before the first sentence, so that any
network can read which one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.lines import read_objects, text_of, wrong_line
from pipeline.tune.forms.classification.settings import Example
from pipeline.tune.tasks.superglue import (
    TEST_FILE,
    SuperGlueFiles,
    SuperGlueLabelsConfig,
    id_in,
    label_in,
)

LABELS = ("different", "same")
_JOINED = re.compile(r"(?:Word: (.*?)\.\s*)?Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def read_examples(path: Path) -> Iterator[Example]:
    """Stream the examples of a file: as SuperGLUE has them, or word and sentences joined in one field `text`.

    Raises:
        ConfigError: a line is not as described.
    """
    for name, found in read_objects(path):
        word, first, second = _word_and_sentences(path, name, found)
        yield Example(
            id_in(path, name, found), f"{word}: {first}", second, label_in(path, name, found, LABELS)
        )


def read_sentences(path: Path) -> Iterator[NamedText]:
    """Both sentences of every line, which need no label."""
    for name, found in read_objects(path):
        yield from ((name, text) for text in _word_and_sentences(path, name, found)[1:])


def _word_and_sentences(path: Path, name: str, found: dict[str, Any]) -> tuple[str, str, str]:
    if "text" not in found:
        first, second = (text_of(path, name, found, key) for key in ("sentence1", "sentence2"))
        return str(found.get("word", "")), first, second
    match = _JOINED.search(text_of(path, name, found, "text"))
    if not match:
        raise wrong_line(path, name, "there are no two sentences in `text`")
    return match[1] or "", match[2], match[3]


FILES = SuperGlueFiles("WiC", read_examples)


class WicConfig(SuperGlueLabelsConfig):
    """Words in Context."""

    kind: Literal["wic"] = "wic"

    files = FILES
    labels = LABELS
    submitted = ("false", "true")
    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "wic",
            (
                Files(("wic/*.jsonl", "WiC/*.jsonl", "superglue/WiC/val.jsonl"), read_sentences),
                Files((f"superglue/WiC/{TEST_FILE}",), read_sentences, optional=True),
            ),
            "WiC of the SuperGLUE benchmark",
        ),
    )
