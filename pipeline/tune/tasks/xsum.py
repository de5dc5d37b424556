"""XSum: what is the news article about, in one sentence? (Narayan et al. 2018; Lewis et al. 2020, section 5.3).

204,045 training, 11,332 validation and 11,334 test documents in the official split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.samples.noise import Noise
from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.files.lines import require_file
from pipeline.tune.files.summaries import read_summaries, summary_texts
from pipeline.tune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.tune.task import TaskData

PAGE_NOTES = {
    "Media playback is not supported on this device",
    "Media playback is unsupported on your device",
}
"""Lines of the BBC's pages that stand before the first sentence of many documents."""
ORIGIN = "XSum's documents as JSON lines, CSV or Parquet with id, document and summary"
COLUMNS = ("document", "summary")


class XsumConfig(GenerationTaskConfig):
    """Extreme summarisation."""

    kind: Literal["xsum"] = "xsum"
    evaluation: Path
    """JSON lines, CSV or Parquet with `id`, `document` and `summary` to score on."""
    train: Path | None = None
    """The same to learn from; null learns from a share of `evaluation` and scores on the rest of it."""
    train_share: float = Field(default=0.9, gt=0, lt=1)
    """Without `train`: the share of the documents to learn from, drawn by a hash of their ids."""

    num_lead = 1
    metrics = ("rouge1", "rouge2", "rouge_l")
    evaluation_sets = (
        EvaluationSet("xsum", (Files(("xsum/test*.jsonl",), summary_texts(*COLUMNS)),), ORIGIN),
    )

    def load(self) -> TaskData[TextPair]:
        """Read the files, and split a single file into documents to learn from and documents to score on."""
        pairs = self._pairs(self.evaluation)
        if self.train is not None:
            return TaskData.of_files(self._pairs(self.train), pairs, [self.train, self.evaluation])
        sides: tuple[list[TextPair], list[TextPair]] = ([], [])
        for pair in pairs:
            is_learnt = float(Noise.of("xsum-split", pair.id).uniform()) < self.train_share
            sides[not is_learnt].append(pair)
        return TaskData.of_files(*sides, [self.evaluation])

    def lead(self, source: str) -> str:
        """The document without the notes of its web page, which are no sentences of it."""
        return "\n".join(line for line in source.split("\n") if line.strip() not in PAGE_NOTES)

    def _pairs(self, path: Path) -> list[TextPair]:
        return [*read_summaries(require_file(path, ORIGIN, "`train` and `evaluation`"), *COLUMNS)]
