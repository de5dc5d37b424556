"""Classification of published pairs and sentences beyond GLUE's plain tables.

MNLI: does the hypothesis follow from the premise, contradict it, or neither? (Williams et al. 2018; GLUE, Wang et al.
2019, section 3.3). 392,702 training pairs, 9,815 evaluation pairs from the genres of training (matched) and 9,832 from
others (mismatched). GLUE's diagnostic set (AX, 1,104 pairs) is answered by a network that was trained on MNLI (section
4).

SNLI: the same of the caption of an image (Bowman et al. 2015). 549,367 training, 9,842 development and 9,824 test pairs
with a label; pairs without one are left out.

SST-5: how positive is the film review sentence, in five classes? (Socher et al. 2013). 8,544 training, 1,101
development and 2,210 test sentences in the official release.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from pipeline.tasks.files.lines import read_lines, require_file, wrong_file, wrong_line
from pipeline.tasks.files.rows import read_objects, read_table
from pipeline.tasks.forms import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tasks.glue import GlueConfig, GlueRow, Split, glue_archive, submission_file
from pipeline.tasks.task import (
    EvaluationSet,
    NamedText,
    TaskData,
    TwoFilesTaskConfig,
    file_input,
    texts_of,
)

INFERENCE_LABELS = ("entailment", "neutral", "contradiction")
NO_LABEL = "-"
"""The label of pairs whose annotators did not agree, which are left out (Bowman et al. 2015, section 3)."""
AX = GlueRow(folder="AX", texts=("Premise", "Hypothesis"), label="Label", labels=INFERENCE_LABELS, metrics=())
"""The columns of diagnostic-full.tsv, which has labels."""
AX_ORIGIN = "diagnostic.tsv or diagnostic-full.tsv of the GLUE benchmark (gluebenchmark.com/diagnostics)"
SNLI_ORIGIN = "the contents of snli_1.0.zip (nlp.stanford.edu/projects/snli)"
SST_ORIGIN = "the trees of the Stanford Sentiment Treebank (nlp.stanford.edu/sentiment)"
_DIAGNOSTIC = "diagnostic"
_MNLI_METRICS = {
    "matched": ("accuracy_matched", "accuracy"),
    "mismatched": ("accuracy_mismatched", "accuracy"),
    _DIAGNOSTIC: ("diagnostic_matthews", "matthews"),
}
"""By group of examples: the name of its metric, and the metric."""


def read_inference(path: Path) -> Iterator[Example]:
    """Stream the labelled pairs of a file of SNLI or MultiNLI, JSON lines or tab-separated.

    Raises:
        ConfigError: a line is not as described, or has an unknown label.
    """
    columns = ("sentence1", "sentence2", "gold_label")
    for row in read_objects(path) if ".jsonl" in path.suffixes else read_table(path, columns):
        premise, hypothesis, label = map(row.official_text, columns)
        if label == NO_LABEL:
            continue
        if label not in INFERENCE_LABELS:
            known = ", ".join((*INFERENCE_LABELS, NO_LABEL))
            raise row.error(f"the label `gold_label` is {label!r}, not one of {known}")
        yield Example(row.name, premise, hypothesis, INFERENCE_LABELS.index(label))


def _read_mnli_texts(path: Path) -> Iterator[NamedText]:
    """Premises and hypotheses: GLUE's tab-separated files, or JSON lines."""
    if path.suffix == ".tsv":
        yield from MNLI.read_texts(path)
        return
    for row in read_objects(path):
        yield from ((row.name, row.official_text(key)) for key in ("premise", "hypothesis"))


MNLI = GlueRow(
    folder="MNLI",
    label="gold_label",
    labels=INFERENCE_LABELS,
    metrics=("accuracy_matched", "accuracy_mismatched"),
    evaluations=(("matched", "dev_matched"), ("mismatched", "dev_mismatched")),
    leaderboard=(
        ("matched", "test_matched", "MNLI-m.tsv"),
        ("mismatched", "test_mismatched", "MNLI-mm.tsv"),
    ),
    evaluation_sets=(
        EvaluationSet(
            "mnli",
            glue_archive("MNLI"),
            _read_mnli_texts,
            (("glue/MNLI/dev_*.tsv", "glue/MNLI/dev_*.jsonl"),),
            ("glue/MNLI/test_*.tsv",),
        ),
        EvaluationSet(
            "ax", AX_ORIGIN, _read_mnli_texts, (("glue/diagnostic/diagnostic*.tsv", "glue/AX/*.tsv"),)
        ),
    ),
)


class MnliConfig(GlueConfig):
    """Multi-Genre Natural Language Inference."""

    kind: Literal["mnli"] = "mnli"
    path: Path
    """The unpacked folder `MNLI`, with train.tsv, dev_matched.tsv and dev_mismatched.tsv, or MultiNLI's own folder with
    multinli_1.0_train.jsonl (or .txt) and the like; or a data set with the splits train, validation_matched and
    validation_mismatched, as `datasets` saves it or the Hugging Face Hub keeps it."""
    diagnostic: Path | None = None
    """GLUE's diagnostic set: diagnostic-full.tsv is scored, diagnostic.tsv has no labels and is predicted for
    `submit`."""

    rows = MappingProxyType({"mnli": MNLI})

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

    def split(self, stem: str, group: str = "", *, is_test: bool = False) -> Split:
        """The examples of `STEM.tsv`; without it, of multinli_1.0_STEM.jsonl or multinli_1.0_STEM.txt."""
        names = (f"{stem}.tsv", f"multinli_1.0_{stem}.jsonl", f"multinli_1.0_{stem}.txt")
        found = next((name for name in names if (self.path / name).is_file()), names[0])
        if is_test or found == names[0]:
            return super().split(stem, group, is_test=is_test)
        examples = read_inference(self.path / found)
        return [self.path / found], [dataclasses.replace(each, group=group) for each in examples]

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """Accuracy on both evaluation sets, and Matthews' correlation on a diagnostic set with labels."""
        from pipeline.tasks.metrics import METRICS

        predicted = self.predictions(outputs)
        labels = np.array([each.label for each in examples])
        groups = np.array([each.group for each in examples])
        return {
            metric: METRICS[function](labels[groups == group], predicted[groups == group])
            for group, (metric, function) in _MNLI_METRICS.items()
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


def _read_diagnostic(path: Path) -> list[Example]:
    """The examples of either file; their ids are the numbers that predictions are submitted under."""
    require_file(path, AX_ORIGIN, "`diagnostic`")
    _, first = next(read_lines(path), ("", ""))
    if AX.label in first.split("\t"):
        labelled = enumerate(AX.examples(path, _DIAGNOSTIC))
        found = [dataclasses.replace(each, id=str(number)) for number, each in labelled]
    else:
        found = [*MNLI.examples(path, _DIAGNOSTIC, is_test=True)]
    if not found:
        raise wrong_file(f"{path} has no examples")
    return found


def _snli_names(split: str) -> tuple[str, ...]:
    """The names of a split's file in the releases."""
    return f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt", f"{split}.tsv"


class SnliConfig(ClassificationTaskConfig):
    """Stanford Natural Language Inference."""

    kind: Literal["snli"] = "snli"
    path: Path
    """The unpacked folder `snli_1.0`, with snli_1.0_train.jsonl and snli_1.0_dev.jsonl, or the same as .txt; or GLUE's
    folder `SNLI` with train.tsv and dev.tsv."""
    split: Literal["dev", "test"] = "dev"
    """The part to score on."""

    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "snli",
            SNLI_ORIGIN,
            texts_of(read_inference),
            tuple(tuple(f"snli/{name}" for name in _snli_names(split)) for split in ("dev", "test")),
        ),
    )

    def load(self) -> TaskData[Example]:
        paths = []
        for split in ("train", self.split):
            named = [self.path / name for name in _snli_names(split)]
            found = next(filter(Path.is_file, named), named[0])
            paths.append(require_file(found, SNLI_ORIGIN, "`path`"))
        train, evaluation = ([*read_inference(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths, INFERENCE_LABELS)


_LEAF = re.compile(r"\([0-4] ([^()\s]+)\)")
_ROOT = re.compile(r"\s*\(([0-4]) ")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def _read_trees(path: Path) -> Iterator[Example]:
    """Stream the sentences of a file of trees: the leaves of the tree on each line, with the label of its root."""
    for name, line in read_lines(path):
        if not line:
            continue
        leaves = [str(leaf) for leaf in _LEAF.findall(line)]
        label = _ROOT.match(line)
        if not leaves or not label:
            raise wrong_line(path, name, "no tree of labels from 0 to 4")
        yield Example(name, " ".join(_BRACKETS.get(leaf, leaf) for leaf in leaves), None, int(label[1]))


class Sst5Config(TwoFilesTaskConfig, ClassificationTaskConfig):
    """The Stanford Sentiment Treebank, five classes of whole sentences, from files of trees such as train.txt."""

    kind: Literal["sst5"] = "sst5"

    origin = SST_ORIGIN
    labels = ("very negative", "negative", "neutral", "positive", "very positive")
    metrics = ("accuracy", "macro_f1")
    evaluation_sets = (
        EvaluationSet("sst5", SST_ORIGIN, texts_of(_read_trees), ("sst5/dev.txt", "sst5/test.txt")),
    )

    def examples(self, path: Path) -> Iterator[Example]:
        return _read_trees(path)
