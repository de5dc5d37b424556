"""The data that a run leaves out after loss spikes, on disk before the run goes back.

`skipped.json` in the run's directory. Every attempt at the run reads it, so that all of them read the same data.
"""

from __future__ import annotations

from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import seal, unseal, write_durably
from pipeline.runs.directory import RunDirectory
from pipeline.runs.skipped_data import SkippedData

LEDGER_NAME = "skipped.json"


class SkippedStep(BaseModel):
    """One global batch that is left out, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_update: int
    """The update whose loss was a spike."""
    data_step: int
    """The global batch that it read."""
    loss: float
    score: float | None
    """Robust z-score of the loss; None where it was infinite."""


class SkipLedger:
    """Reads and writes `skipped.json`. Rank 0 adds; the others note the same."""

    def __init__(self, run_directory: Path, entries: tuple[SkippedStep, ...] | None = None) -> None:
        """
        Args:
            entries: what rank 0 has read, for the others; None reads the file.

        Raises:
            CorruptArtefactError: the file was damaged; without it the run would read other data.
        """
        self._path = run_directory / LEDGER_NAME
        self.entries: tuple[SkippedStep, ...] = self._read() if entries is None else entries
        """What is left out, in the order in which it was found."""

    @property
    def data(self) -> SkippedData:
        """Which global batch each update reads."""
        return SkippedData(entry.data_step for entry in self.entries)

    def add(self, entry: SkippedStep) -> None:
        """Leave one more global batch out; it is on disk when this returns.

        Raises:
            StorageError: the file system refuses.
        """
        entries = (*self.entries, entry)
        contents = seal({"skipped": [one.model_dump(mode="json") for one in entries]})
        with RunDirectory(self._path.parent).refusals():
            write_durably(self._path, orjson.dumps(contents, option=orjson.OPT_INDENT_2))
        self.entries = entries

    def note(self, entry: SkippedStep) -> None:
        """Leave one more out that rank 0 writes down: what other machines would read may be a moment old."""
        self.entries = (*self.entries, entry)

    def _read(self) -> tuple[SkippedStep, ...]:
        if not self._path.exists():
            return ()
        try:
            contents = unseal(orjson.loads(self._path.read_bytes()))
            return tuple(SkippedStep.model_validate(one) for one in contents["skipped"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise CorruptArtefactError(
                f"{self._path} cannot be read: {error}",
                kept="the run's checkpoints; the events `spike` of its history say what the file held",
                next_step=f"restore {self._path} from a backup, or write it again from the history",
            ) from error
