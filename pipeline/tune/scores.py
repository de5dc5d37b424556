"""The scores of trainings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict

from cluster.artefacts.manifest import Manifest
from cluster.artefacts.places import as_place, is_uri
from cluster.artefacts.storage import open_artefact
from cluster.copies import local_copy, manifest_at
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.export.exporting import is_artefact

KIND = "scores"
SCORES_FILE = "scores.json"
START = "start"
"""Setting of scores whose networks started from a fine-tuned network: its reference, `SCORES@TRIAL`."""


def split_scores(reference: str) -> tuple[Path, str | None]:
    """The directory and the training of `SCORES@TRIAL`; all of `reference` and None where it names no single training.

    Directories of scores have the names of checkpoints, which hold an `@` themselves. Scores at a URI are copied to
    this machine, and the directory is the copy's.
    """
    if is_uri(reference):
        return _copied(reference)
    whole, (directory, _, trial) = Path(reference), reference.rpartition("@")
    if directory and not is_artefact(whole, KIND) and is_artefact(Path(directory), KIND):
        return Path(directory), trial or None
    return whole, None


def _copied(uri: str) -> tuple[Path, str | None]:
    whole = str(as_place(uri))
    directory, _, trial = whole.rpartition("@")
    for place, named in ((whole, None), (directory, trial or None)):
        if is_uri(place) and (manifest := manifest_at(place)) is not None and manifest.kind == KIND:
            return local_copy(place, kind=KIND), named
    return Path(uri), None


Initial = Literal["pretrained", "random"]
"""The weights a training started from."""


def _number(value: Any) -> Any:
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_number)]
"""JSON has no NaN: what was none, such as the correlation with a constant, is written as null and read as NaN."""


class EpochScore(BaseModel):
    """The loss and the metrics of one epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    """Updates done by then."""
    loss: Number
    """Mean training loss of the epoch, in nats per prediction: a label, an answer or a token."""
    metrics: dict[str, Number]
    """Empty after epochs that are not scored."""


class Distillation(BaseModel):
    """Teacher and student in numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    teacher: str
    """Fingerprint of the teacher's weights."""
    teacher_parameters: int
    student_parameters: int
    teacher_bytes: int
    """Of the weights as they are saved."""
    student_bytes: int


TEACHER = "teacher"
"""Names the teacher's metrics among the baselines of a score."""


class Score(BaseModel):
    """The result of one training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task's name in the configuration."""
    initial: Initial
    seed: int
    reference: str | None = None
    """The checkpoint, `RUN@STEP` or a directory; None for random weights. Kept in the artefact's manifest,
    not in its files, so that the same scores have the same fingerprint wherever the checkpoint lies."""
    choice: dict[str, float | int] = {}
    """Values of searched settings."""
    main_metric: str
    metrics: dict[str, Number]
    """After the epoch that counts, as shares of 1: the last, unless the settings keep the best."""
    kept_epoch: int | None = None
    """The epoch that counts, from 1, where the best is kept; None for the last."""
    trained_share: float | None = None
    """Trained parameters as a share of the pre-trained ones, without the head, where not all are trained."""
    same_prediction: str | None = None
    """The beginning of the one prediction of all evaluation examples, quoted; None where predictions differ."""
    num_train_examples: int
    num_evaluation_examples: int
    epochs: tuple[EpochScore, ...]
    distillation: Distillation | None = None
    """Where the network learned from a teacher, whose metrics are among `baselines`."""
    baselines: dict[str, dict[str, Number]] = {}
    """By name, the same metrics of predictions without a network, such as the first sentence as a summary."""

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]


def same_prediction(lines: bytes) -> str | None:
    """The one prediction in all lines of `predictions.jsonl`, or for all words where they hold tags; None where two
    differ, or there are none."""
    found: set[str] = set()
    for line in map(orjson.loads, lines.splitlines()):
        found.update(map(str, line.get("predictions", [line["prediction"]] if "prediction" in line else [])))
        if len(found) > 1:
            return None
    return repr(found.pop())[:40] if found else None


def read_scores(directory: Path) -> list[Score]:
    """The scores of a committed artefact, with the checkpoint's reference from its manifest.

    Raises:
        CorruptArtefactError: it is no scores artefact, or a file is damaged.
    """
    manifest = open_artefact(
        directory, kind=KIND, repair="run the same `cloze finetune` again; only damaged trainings are redone"
    )
    return scores_in(directory, manifest)


def scores_in(directory: Path, manifest: Manifest) -> list[Score]:
    """The scores of a verified `scores.json`, with the checkpoint's reference from the manifest."""
    started_from = (entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND)
    reference = manifest.config.get(START) or next(started_from, None)
    scores = [
        Score.model_validate(row) for row in orjson.loads((directory / SCORES_FILE).read_bytes())["scores"]
    ]
    return [with_reference(score, reference) for score in scores]


def with_reference(score: Score, reference: str | None) -> Score:
    """The score naming its checkpoint, unless it started from random weights."""
    return score.model_copy(update={"reference": reference if score.initial == "pretrained" else None})
