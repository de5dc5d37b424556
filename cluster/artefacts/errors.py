"""Typed errors: they say what happened, what was kept, and the command to type next.

Every class of failure has one exception, one exit code and, where an operator must act, one runbook page.
All of them survive pickling, because Ray carries them between processes; so their arguments are plain strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cluster.artefacts.credentials import message_without_credentials
from cluster.artefacts.visible import visible


def _shown(message: str) -> str:
    """A message as it may reach a terminal: names and values in it may be a stranger's."""
    return visible(message_without_credentials(message))


class ClozeError(Exception):
    """Base of every failure that cloze explains instead of showing a traceback.

    Args:
        problem: what happened and where, in one or two sentences.
        kept: finished work that needs no redoing; empty when nothing was at stake.
        next_step: the command to type, or the change to make, next.
    """

    exit_code: ClassVar[int] = 1
    runbook: ClassVar[str | None] = None
    """Page under `runbooks/` for the operator who meets this failure."""
    may_pass: ClassVar[bool] = False
    """Whether the same command may succeed later, without a change by an operator."""
    everywhere: ClassVar[bool] = False
    """Whether all ranks of a group raise it at the same place; otherwise the other ranks may wait for this one."""

    def __init_subclass__(
        cls,
        *,
        exit_code: int | None = None,
        runbook: str | None = None,
        may_pass: bool | None = None,
        everywhere: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        # Ray makes subclasses without arguments for errors that it carries: these stay what their parents are.
        if exit_code is not None:
            cls.exit_code, cls.may_pass, cls.everywhere = exit_code, False, False
            _CODES[exit_code] = cls
        cls.runbook = runbook or cls.runbook
        cls.may_pass = cls.may_pass if may_pass is None else may_pass
        cls.everywhere = cls.everywhere if everywhere is None else everywhere

    def __init__(self, problem: str, *, kept: str = "", next_step: str = "") -> None:
        problem = _shown(problem)
        super().__init__(problem)
        self.problem = problem
        self.kept = _shown(kept)
        self.next_step = _shown(next_step)

    @property
    def members(self) -> dict[str, str | int | None]:
        """For programs that read messages."""
        return {"error": type(self).__name__, "exit_code": self.exit_code, "runbook": self.runbook}

    def __str__(self) -> str:
        lines = [self.problem]
        if self.kept:
            lines.append(f"Kept: {self.kept}")
        if self.next_step:
            lines.append(f"Next: {self.next_step}")
        if self.runbook:
            lines.append(f"Runbook: runbooks/{self.runbook}")
        return "\n".join(lines)


_CODES: dict[int, type[ClozeError]] = {ClozeError.exit_code: ClozeError}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong with a configuration."""

    key: str
    """Dotted key, such as `optimizer.lr`."""
    value: str
    """The offending value as the user wrote it."""
    message: str
    """The allowed values, and the nearest valid name when a key or a choice is misspelt."""

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value else ""
        return _shown(f"  {self.key}{shown}: {self.message}")


class ConfigError(ClozeError, ValueError, exit_code=10):
    """The configuration is wrong; all problems are reported at once."""

    def __init__(
        self, problem: str, *, problems: tuple[ConfigProblem, ...] = (), kept: str = "", next_step: str = ""
    ) -> None:
        super().__init__(problem, kept=kept, next_step=next_step)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([self.problem, *map(str, self.problems), *super().__str__().splitlines()[1:]])


class MissingInputError(ClozeError, ValueError, exit_code=11):
    """A file, directory or pattern that the user named does not exist."""


class EmptyCorpusError(ClozeError, ValueError, exit_code=12, runbook="prepare-a-corpus.md"):
    """No document was left after reading and filtering the sources."""


class TooManyRejectsError(ClozeError, exit_code=13, runbook="prepare-a-corpus.md"):
    """More inputs were unreadable than `max_rejects` allows."""


class DownloadError(ClozeError, exit_code=14, runbook="download-a-corpus.md", may_pass=True):
    """A publisher's server does not deliver a file, or delivers other bytes than it published."""


class CorruptArtefactError(ClozeError, exit_code=20, runbook="corrupt-shard.md"):
    """A file of a committed artefact is missing or its bytes changed."""


class CorruptCheckpointError(ClozeError, exit_code=21, runbook="corrupt-checkpoint.md"):
    """No checkpoint of the run verifies."""


class MismatchError(ClozeError, ValueError, exit_code=22):
    """Two artefacts do not fit together, such as a vocabulary and the tokens."""


class ReferenceNotFoundError(ClozeError, ValueError, exit_code=23):
    """A run, checkpoint, model or job that does not exist."""


class ResumeRefusedError(ClozeError, ValueError, exit_code=24, runbook="resume-after-a-failure.md"):
    """The run cannot be continued as asked, because something it depends on changed."""


class ExportError(ClozeError, ValueError, exit_code=25, runbook="export-a-model.md"):
    """A network cannot be exported, or computes something else when it is read back."""


class UntrustedArtefactError(ClozeError, exit_code=26, runbook="untrusted-artefact.md"):
    """Signatures are asked for, and an artefact has none by a trusted key."""


class WorkersLostError(ClozeError, exit_code=30, runbook="resume-after-a-failure.md", may_pass=True):
    """Training workers kept failing after all retries were spent."""


class ClusterUnreachableError(ClozeError, exit_code=31, runbook="start-and-watch-a-run.md", may_pass=True):
    """No Ray cluster answers at the address."""


class TrackingUnreachableError(ClozeError, exit_code=32, runbook="start-and-watch-a-run.md", may_pass=True):
    """The MLflow tracking store does not answer at the start of a run."""


class StorageError(ClozeError, exit_code=33, runbook="disk-full.md"):
    """The file system refused: disk full, permission denied, read-only."""


class InUseError(StorageError, runbook="resume-after-a-failure.md"):
    """Another process works in the directory."""


class StoreError(StorageError, runbook="keep-data-in-a-store.md"):
    """An object store refuses, or does not answer."""


class StalledError(ClozeError, exit_code=34, runbook="stalled-worker.md", may_pass=True):
    """Training stalled, and stalled again after all restarts; without Ray, there are none."""


class LossSpikeError(ClozeError, exit_code=35, runbook="loss-spike.md", everywhere=True):
    """The loss spiked more often than rollbacks are allowed."""


class NonFiniteError(ClozeError, exit_code=36, runbook="not-a-number.md", everywhere=True):
    """Losses or gradients were not finite in too many updates in a row."""


class OutOfMemoryError(ClozeError, exit_code=37, runbook="out-of-memory.md"):
    """A worker needs more memory than its machine or its GPU has."""


class StagesFailedError(ClozeError, exit_code=38):
    """Stages of a ladder failed; the message holds the end of the output of each."""


class TakenOverError(ClozeError, exit_code=39, runbook="resume-after-a-failure.md"):
    """Another group of workers has taken the run over; this one ended without writing more."""


# 75 is EX_TEMPFAIL of sysexits.h: a temporary failure, to be tried again.
class PreemptedError(ClozeError, exit_code=75, runbook="stop-and-preempt.md", everywhere=True):
    """A user or the machine's scheduler stopped the run; it saved and can be resumed."""


def exit_codes() -> dict[int, type[ClozeError]]:
    """Every documented exit code with its error class, in ascending order."""
    return dict(sorted(_CODES.items()))
