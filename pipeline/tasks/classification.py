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
from typing import Literal

import numpy as np

from pipeline.tasks.files.lines import read_lines, require_file, wrong_file, wrong_line
from pipeline.tasks.files.rows import read_objects, read_table
from pipeline.tasks.forms import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tasks.glue import GlueConfig, Split
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
_MNLI_SUBMISSIONS = {"matched": "MNLI-m", "mismatched": "MNLI-mm", _DIAGNOSTIC: "AX"}


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

    folder = "MNLI"
    label = "gold_label"
    labels = INFERENCE_LABELS
    groups = ("matched", "mismatched")
    submitted_as = _MNLI_SUBMISSIONS
    metrics = ("accuracy_matched", "accuracy_mismatched")

    @classmethod
    def sets(cls) -> tuple[EvaluationSet, ...]:
        dev, test = ("glue/MNLI/dev_*.tsv", "glue/MNLI/dev_*.jsonl"), "glue/MNLI/test_*.tsv"
        ax = "glue/diagnostic/diagnostic*.tsv", "glue/AX/*.tsv"
        return (
            EvaluationSet("mnli", cls.origin(), cls.read_texts, (dev,), (test,)),
            EvaluationSet("ax", AX_ORIGIN, cls.read_texts, (ax,)),
        )

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        """Premises and hypotheses: GLUE's tab-separated files, or JSON lines."""
        if path.suffix == ".tsv":
            yield from super().read_texts(path)
            return
        for row in read_objects(path):
            yield from ((row.name, row.official_text(key)) for key in ("premise", "hypothesis"))

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

    def split(self, split: str, group: str = "") -> Split:
        """The examples of GLUE's file; without it, of multinli_1.0_SPLIT_GROUP.jsonl or .txt."""
        stem = "_".join(filter(None, (split, group)))
        others = [self.path / f"multinli_1.0_{stem}{suffix}" for suffix in (".jsonl", ".txt")]
        found = next(filter(Path.is_file, (self.path / f"{stem}.tsv", *others)), None)
        if split == "test" or found not in others:
            return super().split(split, group)
        return [found], [dataclasses.replace(each, group=group) for each in read_inference(found)]

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


def _read_diagnostic(path: Path) -> list[Example]:
    """The examples of either file; their ids are the numbers that predictions are submitted under."""
    require_file(path, AX_ORIGIN, "`diagnostic`")
    _, first = next(read_lines(path), ("", ""))
    columns = ("Premise", "Hypothesis", "Label")
    if columns[-1] in first.split("\t"):
        found = []
        for number, row in enumerate(read_table(path, columns, exact=True)):
            premise, hypothesis, label = map(row.official_text, columns)
            index = MnliConfig.label_number(row, label)
            found.append(Example(str(number), premise, hypothesis, index, _DIAGNOSTIC))
    else:
        found = [*MnliConfig.examples(path, _DIAGNOSTIC, is_test=True)]
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
