"""XSum: what is the news article about, in one sentence? (Narayan et al. 2018; Lewis et al. 2020, section 5.3).

204,045 training, 11,332 validation and 11,334 test documents in the official split.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.finetune.files.lines import read_objects, require_file, text_of
from pipeline.finetune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.finetune.task import TaskData
from pipeline.samples.noise.noise import Noise

PAGE_NOTES = {
    "Media playback is not supported on this device",
    "Media playback is unsupported on your device",
}
"""Lines of the BBC's pages that stand before the first sentence of many documents."""
ORIGIN = "XSum's documents as JSON lines with id, document and summary"


def read_pairs(path: Path) -> Iterator[TextPair]:
    """Stream the documents of one file with their summaries, named by their BBC numbers.

    Raises:
        ConfigError: a line is not as described.
    """
    for name, found in read_objects(path):
        document, summary = (text_of(path, name, found, key) for key in ("document", "summary"))
        yield TextPair(str(found.get("id", name)), document, summary)


def _read_texts(path: Path) -> Iterator[NamedText]:
    for pair in read_pairs(path):
        yield from ((pair.id, pair.source), (pair.id, pair.target))


class XsumConfig(GenerationTaskConfig):
    """Extreme summarisation."""

    kind: Literal["xsum"] = "xsum"
    path: Path
    """JSON lines with `id`, `document` and `summary` to score on."""
    train: Path | None = None
    """The same to learn from; null learns from a share of `path` and scores on the rest of it."""
    train_share: float = Field(default=0.9, gt=0, lt=1)
    """Without `train`: the share of the documents to learn from, drawn by a hash of their ids."""

    num_lead = 1
    metrics = ("rouge1", "rouge2", "rouge_l")
    evaluation_sets = (EvaluationSet("xsum", (Files(("xsum/test*.jsonl",), _read_texts),), ORIGIN),)

    def load(self) -> TaskData[TextPair]:
        """Read the files, and split a single file into documents to learn from and documents to score on."""
        pairs = self._pairs(self.path)
        if self.train is not None:
            return TaskData.of_files(self._pairs(self.train), pairs, [self.train, self.path])
        sides: tuple[list[TextPair], list[TextPair]] = ([], [])
        for pair in pairs:
            is_learnt = float(Noise.of("xsum-split", pair.id).uniform()) < self.train_share
            sides[not is_learnt].append(pair)
        return TaskData.of_files(*sides, [self.path])

    def lead(self, source: str) -> str:
        """The document without the notes of its web page, which are no sentences of it."""
        return "\n".join(line for line in source.split("\n") if line.strip() not in PAGE_NOTES)

    def _pairs(self, path: Path) -> list[TextPair]:
        """The documents and summaries of a file, without white space around them."""
        require_file(path, ORIGIN, "`path` and `train`")
        return [TextPair(pair.id, pair.source.strip(), pair.target.strip()) for pair in read_pairs(path)]
