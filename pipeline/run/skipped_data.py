"""The data that a run leaves out after loss spikes, in `skipped.json`; on disk before the run is rolled back.

The data of a run is a list of global batches, numbered by data step. Update number `u` reads the u-th data step that is
not left out: without any, both numbers are the same. Every attempt at the run reads the file, so that all of them read
the same data.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.seals import read_sealed, write_sealed
from pipeline.run.directory import RunDirectory


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

    def __init__(self, run: RunDirectory, entries: tuple[SkippedStep, ...] | None = None) -> None:
        """
        Args:
            entries: what rank 0 has read, for the others; None reads the file.

        Raises:
            CorruptArtefactError: the file was damaged; without it the run would read other data.
        """
        self._run = run
        self.entries: tuple[SkippedStep, ...] = self._read() if entries is None else entries
        """The global batches left out, in the order of their discovery."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The data steps that are left out, ascending."""
        return tuple(sorted({entry.data_step for entry in self.entries}))

    def data_step(self, update: int) -> int:
        """The data step that an update reads."""
        for step in self.steps:
            if step > update:
                break
            update += 1
        return update

    def add(self, entry: SkippedStep) -> None:
        """Leave one more global batch out; it is on disk when this returns.

        Raises:
            StorageError: the file system refuses.
        """
        entries = (*self.entries, entry)
        with self._run.refusals():
            write_sealed(self._run.skipped, {"skipped": [one.model_dump(mode="json") for one in entries]})
        self.entries = entries

    def note(self, entry: SkippedStep) -> None:
        """Leave one more out that rank 0 writes down: the file as other machines read it may be a moment old."""
        self.entries = (*self.entries, entry)

    def _read(self) -> tuple[SkippedStep, ...]:
        path = self._run.skipped
        if not path.exists():
            return ()
        try:
            return tuple(SkippedStep.model_validate(one) for one in read_sealed(path)["skipped"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise CorruptArtefactError(
                f"{path} cannot be read: {error}",
                kept="the run's checkpoints; the events `spike` of its history say what the file held",
                next_step=f"restore {path} from a backup, or write it again from the history",
            ) from error
