"""QQP: do two questions ask the same? (Quora 2017; GLUE, Wang et al. 2019, section 3.2).

363,846 training and 40,430 evaluation pairs in the official release, QQP-clean.zip; the older QQP.zip has questions
with line ends in them, which are refused by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.lines import read_lines, wrong_line
from pipeline.tune.files.tables import GlueFiles, read_texts
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(
    folder="QQP",
    texts=("question1", "question2"),
    label="is_duplicate",
    labels=("0", "1"),
    index="id",
    archive="QQP-clean",
)
_LABEL_AT_END = re.compile(r"\s+[01]$")


def read_dev_texts(path: Path) -> Iterator[NamedText]:
    """Question pairs, with or without a header; a label may be glued to the last question by a space."""
    for name, line in read_lines(path):
        fields = line.split("\t")
        if fields[0] == "id":
            continue
        if len(fields) < 5:
            raise wrong_line(path, name, f"{len(fields)} columns, at least 5 are needed")
        yield name, fields[3].strip()
        yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


def read_test_texts(path: Path) -> Iterator[NamedText]:
    """Question pairs without labels."""
    return read_texts(path, FILES.texts)


class QqpConfig(GlueTaskConfig):
    """Quora Question Pairs."""

    kind: Literal["qqp"] = "qqp"

    files = FILES
    label_names = ("different", "duplicate")
    metrics = ("f1", "accuracy")
    leaderboard = (("", "test", "QQP.tsv"),)
    evaluation_sets = (
        EvaluationSet(
            "qqp",
            (
                Files(("glue/QQP/dev*.tsv",), read_dev_texts),
                Files(("glue/QQP/test.tsv",), read_test_texts, optional=True),
            ),
            FILES.origin,
        ),
    )
