"""Finished trainings on disk, as parts of an artefact of scores: a killed run continues after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.manifest import FileEntry, hash_file, sha256_if_signing, write_durably
from cluster.artefacts.parts import PartRecord, PartRecords
from pipeline.tune.scores import SCORES_FILE, Initial, Score

TOKENIZER_FILE = "tokenizer.json"
"""Lies beside fine-tuned weights, so that they can be used without the checkpoint that they started from."""
IN_PROGRESS = "in-progress"
"""Directory, beside the finished trainings, of the states and the notes of those that have begun."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: a task, the weights it starts from, a seed, and a choice of searched settings."""

    task: str
    initial: Initial
    seed: int
    choice: tuple[tuple[str, float | int], ...] = ()
    """Names and values of searched settings, in the search's order; empty without a search."""

    @classmethod
    def of(cls, score: Score) -> Trial:
        """The training with this score."""
        return cls(score.task, score.initial, score.seed, tuple(score.choice.items()))

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
        return Trial.of(self.score).name

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        """The predictions and, where they are kept, the weights."""
        return self.files


TRIAL_RECORDS = PartRecords("trial-records", TrialRecord)


def write_scores(
    directory: Path, records: Sequence[TrialRecord], labels: Mapping[str, Sequence[str]]
) -> None:
    """Write `scores.json`: every score, and the labels of every task in the order of their numbers."""
    scores = [stored_score(record.score) for record in records]
    content = {"scores": scores, "labels": {task: list(names) for task, names in labels.items()}}
    write_durably(
        directory / SCORES_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    )


def stored_score(score: Score) -> dict[str, Any]:
    """A score as it is written: without its checkpoint."""
    return score.model_dump(mode="json", exclude={"reference"})


def file_entries(directory: Path, names: Iterable[str], rows: int | None = None) -> tuple[FileEntry, ...]:
    """Entries of files of a directory, each with its hash and as many `rows`."""
    entries = []
    for name in names:
        digest, size_bytes = hash_file(directory / name)
        sha256 = sha256_if_signing(directory / name)
        entries.append(FileEntry(name, size_bytes, digest, rows=rows, sha256=sha256))
    return tuple(entries)
