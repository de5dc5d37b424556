"""CNN/DailyMail: what are the highlights of the news article? (Hermann et al. 2015; See et al. 2017, version without
anonymised names; Lewis et al. 2020, section 5.3).

287,113 training, 13,368 validation and 11,490 test articles in the released version 3.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from cluster.artefacts.manifest import InputEntry
from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.files.lines import require_file
from pipeline.tune.files.summaries import (
    read_stories,
    read_summaries,
    stories_in,
    stories_of,
    summary_texts,
)
from pipeline.tune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.tune.task import TaskData, file_input, folder_input

ORIGIN = "CNN/DailyMail's articles as CSV, JSON lines or Parquet with id, article and highlights, or its .story files"
COLUMNS = ("article", "highlights")


class CnnDailymailConfig(GenerationTaskConfig):
    """Summarisation by several sentences."""

    kind: Literal["cnn_dailymail"] = "cnn_dailymail"
    train: Path
    """Articles to learn from: CSV, JSON lines or Parquet with `id`, `article` and `highlights`; a folder of .story
    files; or a file of their web addresses, such as all_train.txt, with `stories`."""
    evaluation: Path
    """Articles to score on, likewise."""
    stories: Path | None = None
    """The folder of the .story files that files of web addresses name."""
    max_target_length: int = Field(default=142, ge=8)
    """Tokens of a target with its special tokens; longer ones are cut, in training and in writing."""
    min_target_length: int = Field(default=56, ge=0)
    """Tokens of the shortest text that is written."""
    num_beams: int = Field(default=4, gt=0)
    """Texts that the search follows at once; 1 always takes the likeliest token."""
    length_penalty: float = 2.0
    """Scores of finished texts are divided by their length to this power."""

    num_lead = 3
    metrics = ("rouge1", "rouge2", "rouge_lsum", "rouge_l")
    evaluation_sets = (
        EvaluationSet(
            "cnn_dailymail",
            (Files(("cnn_dailymail/test*.parquet", "cnn_dailymail/test*.jsonl"), summary_texts(*COLUMNS)),),
            ORIGIN,
        ),
    )

    def load(self) -> TaskData[TextPair]:
        """Read both sides."""
        (train, first), (evaluation, second) = map(self._side, (self.train, self.evaluation))
        return TaskData.of_files(train, evaluation, [first, second])

    def _side(self, path: Path) -> tuple[list[TextPair], InputEntry]:
        """The articles that a setting names, and the entry of their files."""
        if path.is_dir():
            stories = stories_in(path)
        elif path.suffix == ".txt" and self.stories is not None:
            stories = stories_of(require_file(path, ORIGIN, "`train` and `evaluation`"), self.stories)
        else:
            return [
                *read_summaries(require_file(path, ORIGIN, "`train` and `evaluation`"), *COLUMNS)
            ], file_input(path)
        return [*read_stories(stories)], folder_input(path, stories)
