"""Finished trainings on disk: a killed run continues after them.

The files of a training are written first, its record last and durably. So a record always describes finished
files, and what has no good record is trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import FileEntry, hash_file, write_durably
from pipeline.finetune.scores import SCORES_FILE, Initial, Score

RECORDS_NAME = "trial-records"
TOKENIZER_FILE = "tokenizer.json"
"""Lies beside fine-tuned weights, so that they can be used without the checkpoint that they started from."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: a task, the weights it starts from, and a seed."""

    task: str
    initial: Initial
    seed: int

    @property
    def name(self) -> str:
        """`TASK-INITIAL-SEED`, unique in a run and safe in file names."""
        return f"{self.task}-{self.initial}-{self.seed}"

    def file(self, kind: str) -> str:
        """The name of one of its files: `predictions-TASK-INITIAL-SEED.jsonl` for `predictions.jsonl`."""
        stem, _, suffix = kind.rpartition(".")
        return f"{stem}-{self.name}.{suffix}"

    @property
    def model_file(self) -> str:
        """The fine-tuned weights, where they are kept."""
        return self.file("model.safetensors")


class TrialRecord(BaseModel):
    """The durable note that a training is finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    """Hash of everything that determines the training: data, settings, initial weights, seed."""
    score: Score
    files: tuple[FileEntry, ...]
    tracked_run: str
    """Its MLflow run."""


def write_record(
    directory: Path, trial: Trial, identity: str, score: Score, files: Sequence[str], tracked_run: str
) -> TrialRecord:
    """Note that `trial` is finished and its `files` (names in `directory`) are complete."""
    entries = []
    for name in files:
        digest, size_bytes = hash_file(directory / name)
        entries.append(FileEntry(path=name, size_bytes=size_bytes, xxh3_128=digest))
    record = TrialRecord(identity=identity, score=score, files=tuple(entries), tracked_run=tracked_run)
    path = _record_path(directory, trial)
    path.parent.mkdir(exist_ok=True)
    write_durably(path, orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    return record


def good_record(directory: Path, trial: Trial, identity: str) -> TrialRecord | None:
    """The record of a finished training whose files still have their recorded bytes, else None."""
    try:
        record = TrialRecord.model_validate(orjson.loads(_record_path(directory, trial).read_bytes()))
        unchanged = all(hash_file(entry.under(directory))[0] == entry.xxh3_128 for entry in record.files)
    except (OSError, orjson.JSONDecodeError, ValidationError, CorruptArtefactError):
        return None
    return record if unchanged and record.identity == identity else None


def adopt(old: Path, directory: Path, trial: Trial, record: TrialRecord) -> None:
    """Copy a finished training out of another directory, the record last."""
    for entry in record.files:
        shutil.copyfile(entry.under(old), entry.under(directory))
    path = _record_path(directory, trial)
    path.parent.mkdir(exist_ok=True)
    write_durably(path, _record_path(old, trial).read_bytes())


def write_scores(
    directory: Path, records: Sequence[TrialRecord], labels: Mapping[str, Sequence[str]]
) -> None:
    """Write `scores.json`: every score, and the labels of every task in the order of their numbers."""
    scores = [record.score.model_dump(mode="json", exclude={"reference"}) for record in records]
    content = {"scores": scores, "labels": {task: list(names) for task, names in labels.items()}}
    write_durably(
        directory / SCORES_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    )


def artefact_files(
    directory: Path, records: Sequence[TrialRecord], further: Sequence[str] = ()
) -> list[FileEntry]:
    """Entries of all files that belong to the artefact, `further` ones by name; the records are bookkeeping and stay
    out."""
    own = {SCORES_FILE: len(records), **dict.fromkeys(further)}
    entries = []
    for name, rows in own.items():
        digest, size_bytes = hash_file(directory / name)
        entries.append(FileEntry(path=name, size_bytes=size_bytes, xxh3_128=digest, rows=rows))
    return [*entries, *(entry for record in records for entry in record.files)]


def _record_path(directory: Path, trial: Trial) -> Path:
    return directory / RECORDS_NAME / f"{trial.name}.json"
