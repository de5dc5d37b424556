"""MNLI: does the hypothesis follow from the premise, contradict it, or neither? (Williams et al. 2018; GLUE, Wang et
al. 2019, section 3.3).

392,702 training pairs, 9,815 evaluation pairs from the genres of training (matched) and 9,832 from others (mismatched).
GLUE's diagnostic set (AX, 1,104 pairs) is answered by a network that was trained on MNLI (section 4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.inference import LABELS, read_inference
from pipeline.tune.files.lines import read_lines, read_objects, require_file, text_of, wrong_file
from pipeline.tune.files.tables import GlueFiles, read_texts
from pipeline.tune.forms.classification.settings import UNLABELLED, Example
from pipeline.tune.task import TaskData, file_input
from pipeline.tune.tasks.glue import GlueTaskConfig, Split, submission_file

FILES = GlueFiles(folder="MNLI", texts=("sentence1", "sentence2"), label="gold_label", labels=LABELS)
AX = GlueFiles(folder="AX", texts=("Premise", "Hypothesis"), label="Label", labels=LABELS)
"""The columns of diagnostic-full.tsv, which has labels."""
DIAGNOSTIC_ORIGIN = (
    "diagnostic.tsv or diagnostic-full.tsv of the GLUE benchmark (gluebenchmark.com/diagnostics)"
)


def read_evaluation_texts(path: Path) -> Iterator[NamedText]:
    """Premises and hypotheses: GLUE's tab-separated files, or JSON lines."""
    if path.suffix == ".tsv":
        yield from read_texts(path, FILES.texts)
        return
    for name, found in read_objects(path):
        yield from ((name, text_of(path, name, found, key)) for key in ("premise", "hypothesis"))


def _read_diagnostic_texts(path: Path) -> Iterator[NamedText]:
    return read_texts(path, FILES.texts)


class MnliConfig(GlueTaskConfig):
    """Multi-Genre Natural Language Inference."""

    kind: Literal["mnli"] = "mnli"
    path: Path
    """The unpacked folder `MNLI`, with train.tsv, dev_matched.tsv and dev_mismatched.tsv, or MultiNLI's own folder with
    multinli_1.0_train.jsonl (or .txt) and the like; or a data set with the splits train, validation_matched and
    validation_mismatched, as `datasets` saves it or the Hugging Face Hub keeps it."""
    diagnostic: Path | None = None
    """GLUE's diagnostic set: diagnostic-full.tsv is scored, diagnostic.tsv has no labels and is predicted for
    `submit`."""

    files = FILES
    metrics = ("accuracy_matched", "accuracy_mismatched")
    evaluations = (("matched", "dev_matched"), ("mismatched", "dev_mismatched"))
    leaderboard = (
        ("matched", "test_matched", "MNLI-m.tsv"),
        ("mismatched", "test_mismatched", "MNLI-mm.tsv"),
    )
    evaluation_sets = (
        EvaluationSet(
            "mnli",
            (
                Files(("glue/MNLI/dev_*.tsv", "glue/MNLI/dev_*.jsonl"), read_evaluation_texts),
                Files(("glue/MNLI/test_*.tsv",), read_evaluation_texts, optional=True),
            ),
            FILES.origin,
        ),
        EvaluationSet(
            "ax",
            (Files(("glue/diagnostic/diagnostic*.tsv", "glue/AX/*.tsv"), _read_diagnostic_texts),),
            DIAGNOSTIC_ORIGIN,
        ),
    )

    def load(self) -> TaskData[Example]:
        """Read the files of MNLI, and the diagnostic set where one is named."""
        data = super().load()
        if self.diagnostic is None:
            return data
        examples = _read_diagnostic(self.diagnostic)
        is_scored = examples[0].label != UNLABELLED
        unlabelled = [dataclasses.replace(each, label=UNLABELLED) for each in examples]
        return dataclasses.replace(
            data,
            evaluation=(*data.evaluation, *(examples if is_scored else ())),
            test=(*data.test, *(unlabelled if self.submit else ())),
            inputs=(*data.inputs, file_input(self.diagnostic)),
        )

    def split(self, stem: str, group: str = "") -> Split:
        """The examples of `STEM.tsv`; without it, of multinli_1.0_STEM.jsonl or multinli_1.0_STEM.txt."""
        names = (f"{stem}.tsv", f"multinli_1.0_{stem}.jsonl", f"multinli_1.0_{stem}.txt")
        found = next((name for name in names if (self.path / name).is_file()), names[0])
        if found == names[0]:
            return super().split(stem, group)
        examples = read_inference(self.path / found)
        return [self.path / found], [dataclasses.replace(each, group=group) for each in examples]

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """Accuracy on both evaluation sets, and Matthews' correlation on a diagnostic set with labels."""
        from pipeline.tune.metrics import METRICS

        predicted = self.predictions(outputs)
        labels = np.array([each.label for each in examples])
        groups = np.array([each.group for each in examples])
        return {
            metric: METRICS[function](labels[groups == group], predicted[groups == group])
            for group, (metric, function) in _METRICS.items()
            if (groups == group).any()
        }

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """Files for both test sets, and for the diagnostic set where one is named."""
        files = super().submission(examples, outputs, labels)
        values = zip(examples, map(self.submitted, self.predictions(outputs)), strict=True)
        diagnostic = [(each.id, value) for each, value in values if each.group == _DIAGNOSTIC]
        return files | ({"AX.tsv": submission_file(diagnostic)} if diagnostic else {})


_DIAGNOSTIC = "diagnostic"
_METRICS = {
    "matched": ("accuracy_matched", "accuracy"),
    "mismatched": ("accuracy_mismatched", "accuracy"),
    _DIAGNOSTIC: ("diagnostic_matthews", "matthews"),
}
"""By group of examples: the name of its metric, and the metric."""


def _read_diagnostic(path: Path) -> list[Example]:
    """The examples of either file; their ids are the numbers that predictions are submitted under."""
    require_file(path, DIAGNOSTIC_ORIGIN, "`diagnostic`")
    _, first = next(read_lines(path), ("", ""))
    if AX.label in first.split("\t"):
        labelled = enumerate(AX.read_labelled(path))
        found = [Example(str(n), a, b, label, _DIAGNOSTIC) for n, (_, (a, b), label) in labelled]
    else:
        unlabelled = FILES.read_unlabelled(path)
        found = [Example(index, a, b, UNLABELLED, _DIAGNOSTIC) for index, (a, b) in unlabelled]
    if not found:
        raise wrong_file(f"{path} has no examples")
    return found
