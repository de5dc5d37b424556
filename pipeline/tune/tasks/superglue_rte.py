"""RTE in SuperGLUE's layout: does the hypothesis follow from the premise? (Wang et al. 2019b).

2,490 training and 277 evaluation pairs, the same as in GLUE. The diagnostic sets AX-b and AX-g (1,104 and 356 pairs)
are answered by a network that was trained on RTE (section 3.3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.tune.files.lines import read_objects, require_file, text_of, wrong_line
from pipeline.tune.forms.classification.settings import UNLABELLED, Example
from pipeline.tune.task import TaskData, file_input
from pipeline.tune.tasks.superglue import (
    SuperGlueFiles,
    SuperGlueLabelsConfig,
    pair_reader,
    submission_file,
)

LABELS = ("entailment", "not_entailment")
DIAGNOSTICS = {"AX-b": ("sentence1", "sentence2"), "AX-g": ("premise", "hypothesis")}
"""Diagnostic sets, and the columns of their texts."""
FILES = SuperGlueFiles("RTE", pair_reader("premise", "hypothesis", LABELS))


class SuperglueRteConfig(SuperGlueLabelsConfig):
    """Recognizing Textual Entailment, as JSON lines."""

    kind: Literal["superglue_rte"] = "superglue_rte"
    ax_b: Path | None = None
    """AX-b.jsonl, linguistic diagnostics, to be predicted for `submit`."""
    ax_g: Path | None = None
    """AX-g.jsonl, gender diagnostics, to be predicted for `submit`."""

    files = FILES
    labels = LABELS
    submitted = LABELS
    metrics = ("accuracy",)
    evaluation_sets = (FILES.evaluation_set("superglue_rte"),)

    def load(self) -> TaskData[Example]:
        """Read the files of RTE, and the diagnostic sets that are named.

        Raises:
            MissingInputError, ConfigError: as for every task of SuperGLUE.
        """
        data = super().load()
        for name, path in (("AX-b", self.ax_b), ("AX-g", self.ax_g)) if self.submit else ():
            if path is not None:
                require_file(
                    path, f"{name}.zip of the SuperGLUE benchmark", f"`{name.lower().replace('-', '_')}`"
                )
                examples = tuple(_read_diagnostic(path, name))
                data = dataclasses.replace(
                    data, test=(*data.test, *examples), inputs=(*data.inputs, file_input(path))
                )
        return data

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """A file for RTE, and for each diagnostic set that is named."""
        rows = [
            (each.group or self.files.folder, (each.id, self.submitted[number]))
            for each, number in zip(examples, self.predictions(outputs).tolist(), strict=True)
        ]
        return {
            f"{name}.jsonl": submission_file(row for group, row in rows if group == name)
            for name in dict.fromkeys(group for group, _ in rows)
        }


def _read_diagnostic(path: Path, name: str) -> Iterator[Example]:
    for line, found in read_objects(path):
        first, second = (text_of(path, line, found, key) for key in DIAGNOSTICS[name])
        if not isinstance(found.get("idx"), int):
            raise wrong_line(path, line, f"`idx` is {found.get('idx')!r}, not a number")
        yield Example(str(found["idx"]), first, second, UNLABELLED, name)
