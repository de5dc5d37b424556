"""The scores of trials, and the artefact that holds them: finished trials as its parts, committed scores read back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator

from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.manifest import FileEntry, Manifest, write_durably
from cluster.artefacts.parts import PartRecord, PartRecords
from cluster.artefacts.storage import contents_of, open_artefact
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND

KIND = "scores"
SCORES_FILE = "scores.json"
TOKENIZER_FILE = "tokenizer.json"
"""Lies beside fine-tuned weights, so that they can be used without the checkpoint that they started from."""
IN_PROGRESS = "in-progress"
"""Directory, beside the finished trials, of the states and the notes of those that have begun."""
START = "start"
"""Setting of scores whose networks started from a fine-tuned network: its reference, `SCORES@TRIAL`."""
TEACHER = "teacher"
"""Names the teacher's metrics among the baselines of a score."""
Line = dict[str, Any]
"""The prediction of one evaluation example, as a form wrote it."""
Initial = Literal["pretrained", "random"]
"""The weights a training started from."""
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""JSON has no NaN and no infinity, such as the perplexity of a large loss: both are written as null, read as NaN."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: a task, the weights it starts from, a seed, and a choice of searched settings."""

    task: str
    initial: Initial
    seed: int
    choice: tuple[tuple[str, float | int], ...] = ()
    """Names and values of searched settings, in the search's order; empty without a search."""

    @property
    def name(self) -> str:
        """`TASK-INITIAL-SEED`, or `TASK-INITIAL-lr=2e-05-SEED`: unique in a run and safe in file names."""
        chosen = "".join(f"-{setting}={value}" for setting, value in self.choice)
        return f"{self.task}-{self.initial}{chosen}-{self.seed}"

    def file(self, kind: str) -> str:
        """The name of one of its files: `predictions-TASK-INITIAL-SEED.jsonl` for `predictions.jsonl`."""
        stem, _, suffix = kind.rpartition(".")
        return f"{stem}-{self.name}.{suffix}"

    @property
    def model_file(self) -> str:
        """The fine-tuned weights, where they are kept."""
        return self.file("model.safetensors")


class EpochScore(BaseModel, frozen=True, extra="forbid"):
    """The loss and the metrics of one epoch."""

    update: int
    """Updates done by then."""
    loss: Number
    """Mean training loss of the epoch, in nats per prediction: a label, an answer or a token."""
    metrics: dict[str, Number]
    """Empty after epochs that are not scored."""


class Distillation(BaseModel, frozen=True, extra="forbid"):
    """Teacher and student in numbers."""

    teacher: str
    """Fingerprint of the teacher's weights."""
    teacher_parameters: int
    student_parameters: int
    teacher_bytes: int
    """Size of the teacher's saved weights."""
    student_bytes: int


class Score(BaseModel, frozen=True, extra="forbid"):
    """The result of one training."""

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
    """The teacher of the network, if it had one; the teacher's metrics are among `baselines`."""
    baselines: dict[str, dict[str, Number]] = {}
    """By name, the same metrics of predictions without a network, such as the first sentence as a summary."""

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]

    @property
    def trial(self) -> Trial:
        """The trial with this score."""
        return Trial(self.task, self.initial, self.seed, tuple(self.choice.items()))


class TrialRecord(PartRecord):
    """The durable note that a training is finished.

    Its identity hashes everything that determines the training: data, settings, initial weights, seed.
    """

    score: Score
    files: tuple[FileEntry, ...]
    tracked_run: str
    """Its MLflow run."""
    seconds: float
    """Time of training and evaluation, of all attempts together."""
    examples_per_second: dict[str, float] | None = None
    """Evaluation rows that `teacher` and `student` read per second on this machine; None without a teacher."""

    @property
    def part_name(self) -> str:
        """Name of the training."""
        return self.score.trial.name

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        """The predictions and, where they are kept, the weights."""
        return self.files


TRIAL_RECORDS = PartRecords("trial-records", TrialRecord)


def write_scores(
    directory: Path, records: Sequence[TrialRecord], labels: Mapping[str, Sequence[str]]
) -> None:
    """Write `scores.json`: every score, and the labels of every task in the order of their numbers."""
    # The checkpoint is in the manifest.
    scores = [record.score.model_dump(mode="json", exclude={"reference"}) for record in records]
    content = {"scores": scores, "labels": {task: list(names) for task, names in labels.items()}}
    write_durably(
        directory / SCORES_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    )


def file_entries(directory: Path, names: Iterable[str], rows: int | None = None) -> tuple[FileEntry, ...]:
    """Entries of files of a directory, each with its hash and as many `rows`."""
    return tuple(FileEntry.of(directory / name, name, rows=rows) for name in names)


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
    return list(ScoresDirectory.open(directory).scores)


@dataclass(frozen=True, slots=True)
class ScoresDirectory:
    """A committed artefact of scores, whose files were verified."""

    path: Path
    manifest: Manifest
    scores: tuple[Score, ...]
    labels: dict[str, list[str]]
    """By task the names of its labels, in the order of their numbers; empty where nothing is classified."""

    @classmethod
    def open(cls, path: Path) -> ScoresDirectory:
        """Read scores and manifest.

        Raises:
            MissingInputError: it is an artefact of another kind.
            CorruptArtefactError: it is no artefact, or a file is damaged.
        """
        repair = "run the same `cloze finetune` again; only damaged trainings are redone"
        manifest = open_artefact(path, kind=KIND, repair=repair)
        with contents_of(path / SCORES_FILE):
            return cls.verified(path, manifest)

    @classmethod
    def verified(cls, path: Path, manifest: Manifest) -> ScoresDirectory:
        """Read a `scores.json` whose hash is the manifest's; the manifest has the checkpoint's reference."""
        content = orjson.loads((path / SCORES_FILE).read_bytes())
        started_from = (entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND)
        reference = manifest.config.get(START) or next(started_from, None)
        scores = [
            score.model_copy(update={"reference": reference if score.initial == "pretrained" else None})
            for score in map(Score.model_validate, content["scores"])
        ]
        return cls(path, manifest, tuple(scores), content.get("labels", {}))

    @property
    def runs(self) -> dict[str, str]:
        """MLflow's run of every training, by the training's name."""
        return self.manifest.stats.get("tracked_runs", {})

    def kind(self, task: str) -> str:
        """The kind of a task, such as `sst2`; empty where the manifest does not say."""
        return self.manifest.config.get("tasks", {}).get(task, {}).get("kind", "")

    def seconds(self, trial: Trial) -> float | None:
        """Time of a training with its evaluations; None where it was not measured."""
        return self.manifest.stats.get("seconds", {}).get(trial.name)

    def speeds(self, trial: Trial) -> dict[str, float] | None:
        """Evaluation rows that `teacher` and `student` read per second; None for a training without a teacher."""
        return self.manifest.stats.get("examples_per_second", {}).get(trial.name)

    def score(self, name: str | None) -> Score:
        """The score of the training called `name`; by default of the first one.

        Raises:
            ReferenceNotFoundError: there is none; the message names those that there are.
        """
        found = {score.trial.name: score for score in self.scores}
        if name is None:
            return self.scores[0]
        if name not in found:
            raise ReferenceNotFoundError(
                f"{self.path} has no training {name}.", next_step=f"name one of {', '.join(found)}"
            )
        return found[name]

    def lines(self, trial: Trial) -> list[Line]:
        """The predictions of a training; none where its form writes no lines."""
        path = self.path / trial.file("predictions.jsonl")
        if not path.exists():
            return []
        with contents_of(path):
            return [orjson.loads(line) for line in path.read_bytes().splitlines()]

    def losses(self, trial: Trial) -> list[float]:
        """The mean loss of every update."""
        path = self.path / trial.file("losses.json")
        with contents_of(path):
            # JSON has no NaN.
            return [math.nan if loss is None else loss for loss in orjson.loads(path.read_bytes())]
