"""SNLI: does the hypothesis follow from the caption of an image, contradict it, or neither? (Bowman et al. 2015).

549,367 training, 9,842 development and 9,824 test pairs with a label; pairs without one are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, texts_of
from pipeline.tune.files.inference import LABELS, read_inference
from pipeline.tune.files.lines import require_file
from pipeline.tune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.tune.task import TaskData

ORIGIN = "the contents of snli_1.0.zip (nlp.stanford.edu/projects/snli)"


def _names(split: str) -> tuple[str, ...]:
    return f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt", f"{split}.tsv"


_READ_TEXTS = texts_of(lambda path: ((each.id, each.texts) for each in read_inference(path)))


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
            tuple(
                Files(tuple(f"snli/{name}" for name in _names(split)), _READ_TEXTS)
                for split in ("dev", "test")
            ),
            ORIGIN,
        ),
    )

    def load(self) -> TaskData[Example]:
        """Read both files."""
        paths = [self._file(split) for split in ("train", self.split)]
        train, evaluation = ([*read_inference(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths, LABELS)

    def _file(self, split: str) -> Path:
        """The first file of a split that there is, by its names in the releases."""
        paths = [self.path / name for name in _names(split)]
        return require_file(next(filter(Path.is_file, paths), paths[0]), ORIGIN, "`path`")
