"""CNN/DailyMail: what are the highlights of the news article? (Hermann et al. 2015; See et al. 2017, version without
anonymised names; Lewis et al. 2020, section 5.3).

287,113 training, 13,368 validation and 11,490 test articles in the released version 3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.finetune.files.lines import require_file, wrong_line
from pipeline.finetune.files.rows import read_rows
from pipeline.finetune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.finetune.task import TaskData

ORIGIN = "CNN/DailyMail's articles as CSV, JSON lines or Parquet with id, article and highlights"


def read_pairs(path: Path) -> Iterator[TextPair]:
    """Stream the articles of one file with their highlights, a sentence in each line.

    Raises:
        ConfigError: a row is not as described.
    """
    for row in read_rows(path):
        texts: list[Any] = [row.values.get(column) for column in ("article", "highlights")]
        for column, text in zip(("article", "highlights"), texts, strict=True):
            if not isinstance(text, str):
                raise wrong_line(path, row.name, f"there is no text `{column}` among {list(row.values)}")
        yield TextPair(str(row.values.get("id", row.name)), texts[0].strip(), texts[1].strip())


def _read_texts(path: Path) -> Iterator[NamedText]:
    for pair in read_pairs(path):
        yield from ((pair.id, pair.source), (pair.id, pair.target))


class CnnDailymailConfig(GenerationTaskConfig):
    """Summarisation by several sentences."""

    kind: Literal["cnn_dailymail"] = "cnn_dailymail"
    train: Path
    """Articles to learn from, in CSV, JSON lines or Parquet with `id`, `article` and `highlights`."""
    evaluation: Path
    """Articles to score on, likewise."""
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
            (Files(("cnn_dailymail/test*.parquet", "cnn_dailymail/test*.jsonl"), _read_texts),),
            ORIGIN,
        ),
    )

    def load(self) -> TaskData[TextPair]:
        """Read both files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a row is not as described.
        """
        paths = [
            require_file(path, ORIGIN, "`train` and `evaluation`") for path in (self.train, self.evaluation)
        ]
        train, evaluation = ([*read_pairs(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths)
