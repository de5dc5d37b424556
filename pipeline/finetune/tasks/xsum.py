"""XSum: what is the news article about, in one sentence? (Narayan et al. 2018; Lewis et al. 2020, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import InputEntry, hash_file
from pipeline.finetune.tasks.base import GenerationTaskConfig, TaskData, TextPair
from pipeline.samples.noise.noise import Noise

METRICS = ("rouge1", "rouge2", "rouge_l")
_KEYS = ("id", "document", "summary")


class XsumConfig(GenerationTaskConfig):
    """Extreme summarisation."""

    kind: Literal["xsum"] = "xsum"
    path: Path
    """JSON lines with `id`, `document` and `summary` to score on."""
    train: Path | None = None
    """The same to learn from; null learns from a share of `path` and scores on the rest of it."""
    train_share: float = Field(default=0.9, gt=0, lt=1)
    """Without `train`: the share of the documents to learn from, drawn by a hash of their ids."""


def load(config: XsumConfig) -> TaskData[TextPair]:
    """204,045 training, 11,332 validation and 11,334 test documents in the official split.

    Raises:
        MissingInputError: a file is missing.
        ConfigError: a line is not as described, or a side of the split is empty.
    """
    pairs = tuple(read_pairs(config.path))
    if config.train is None:
        learnt = [_is_learnt(pair, config.train_share) for pair in pairs]
        train = tuple(pair for pair, learn in zip(pairs, learnt, strict=True) if learn)
        evaluation = tuple(pair for pair, learn in zip(pairs, learnt, strict=True) if not learn)
    else:
        train, evaluation = tuple(read_pairs(config.train)), pairs
    if not train or not evaluation:
        raise ConfigError(
            f"{config.path} gives {len(train)} documents to learn from and {len(evaluation)} to score on.",
            next_step="name larger files by `path` and `train`, or change `train_share`",
        )
    files = [config.path] if config.train is None else [config.train, config.path]
    return TaskData(
        train=train,
        evaluation=evaluation,
        labels=(),
        inputs=tuple(
            InputEntry(kind="source-file", uri=str(path), fingerprint=hash_file(path)[0]) for path in files
        ),
    )


def read_pairs(path: Path) -> Iterator[TextPair]:
    """Stream the documents of one file with their summaries, both without white space around them."""
    if not path.is_file():
        raise MissingInputError(
            f"There is no {path}.",
            next_step="put XSum's documents there as JSON lines with id, document and summary, or correct the"
            " task's `path` and `train`",
        )
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                row = orjson.loads(line)
                name, document, summary = (row[key] for key in _KEYS)
                yield TextPair(str(name), document.strip(), summary.strip())
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{path}, line {number}: {error!r}, but a JSON object with texts under"
                    f" {', '.join(_KEYS)} is needed.",
                    next_step="compare the file with XSum's documents as JSON lines",
                ) from None


def _is_learnt(pair: TextPair, share: float) -> bool:
    return float(Noise.of("xsum-split", pair.id).uniform()) < share
