"""Pairs of sentences with their inference: SNLI and MultiNLI, as JSON lines or tab-separated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.tune.files.lines import read_objects, text_of, wrong_line
from pipeline.tune.files.tables import read_columns
from pipeline.tune.forms.classification.settings import Example

LABELS = ("entailment", "neutral", "contradiction")
NO_LABEL = "-"
"""The label of pairs whose annotators did not agree, which are left out (Bowman et al. 2015, section 3)."""


def read_inference(path: Path) -> Iterator[Example]:
    """Stream the labelled pairs of a file.

    Raises:
        ConfigError: a line is not as described, or has an unknown label.
    """
    columns = ("sentence1", "sentence2", "gold_label")
    if ".jsonl" in path.suffixes:
        objects = read_objects(path)
        lines = ((name, [text_of(path, name, found, key) for key in columns]) for name, found in objects)
    else:
        lines = read_columns(path, columns)
    for name, (premise, hypothesis, label) in lines:
        if label == NO_LABEL:
            continue
        if label not in LABELS:
            known = ", ".join((*LABELS, NO_LABEL))
            raise wrong_line(path, name, f"the label `gold_label` is {label!r}, not one of {known}")
        yield Example(name, premise, hypothesis, LABELS.index(label))
