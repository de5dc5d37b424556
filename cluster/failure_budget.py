"""How often a group of workers is started again, by class of failure.

Preempted     a node was taken away as announced: any number of times
Lost          processes, machines, networks or file systems failed: `max_failures` times
Raised        the program raised an exception that a new start raises again, most likely: `max_errors` times
Final         a module is missing, or the program cannot do what it was asked for: never

Errors that cloze explains (`ClozeError`: settings, damage, storage, numbers that are not finite) end a group at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_OF_THE_PROGRAM = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, TypeError, ValueError),
)
"""Exceptions of code. A lost peer, a device or a file system raises RuntimeError, OSError or an error of Ray."""
_FINAL = (ImportError, NotImplementedError)
"""Exceptions that every start raises again."""


class Failure(StrEnum):
    """A class of failures."""

    PREEMPTED = "preempted"
    LOST = "lost"
    RAISED = "raised"


@dataclass(slots=True)
class FailureBudget:
    """The restarts of one group, and how many of them are spent."""

    max_failures: int
    """Restarts after workers were lost."""
    max_errors: int = 1
    """Restarts after exceptions of the program."""
    spent: dict[Failure, int] = field(default_factory=dict)
    """By class, the restarts until now."""

    def spend(self, failure: Exception) -> bool:
        """Whether the group may start again after Ray Train's error; counts the restart."""
        if any(isinstance(error, _FINAL) for error in errors_by_rank(failure).values()):
            return False
        kind, limit = class_of(failure), self.limit(failure)
        spent = self.spent.get(kind, 0)
        if limit is not None and (spent >= limit or not _may_pass(failure)):
            return False
        self.spent[kind] = spent + 1
        return True

    def limit(self, failure: Exception) -> int | None:
        """The restarts after failures of this class; None for any number."""
        limits = {Failure.LOST: self.max_failures, Failure.RAISED: self.max_errors}
        return limits.get(class_of(failure))


def errors_by_rank(failure: Exception) -> dict[int, Exception]:
    """The workers' exceptions, or why Ray lost them, from Ray Train's error."""
    return dict(getattr(failure, "worker_failures", {}))


def class_of(failure: Exception) -> Failure:
    """The class of Ray Train's error."""
    errors = list(errors_by_rank(failure).values())
    if _was_preempted(failure, errors):
        return Failure.PREEMPTED
    if errors and all(isinstance(error, _OF_THE_PROGRAM) for error in errors):
        return Failure.RAISED
    return Failure.LOST


def _was_preempted(failure: Exception, errors: list[Any]) -> bool:
    """Whether a node of the group was taken away as announced; its workers did nothing wrong."""
    from ray.exceptions import RayActorError
    from ray.train.v2.api.exceptions import PreemptionError

    return isinstance(failure, PreemptionError) or any(
        isinstance(error, RayActorError) and error.preempted for error in errors
    )


def _may_pass(failure: Exception) -> bool:
    """Whether a new start may help: workers were lost or raised, and the failure is not Ray Train's own."""
    from ray.exceptions import RayActorError
    from ray.train.v2.api.exceptions import ControllerError

    return not isinstance(failure, ControllerError) or isinstance(failure.controller_failure, RayActorError)
