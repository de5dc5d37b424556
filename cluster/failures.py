"""Failures of what a driver runs in other processes: their classes, and what follows from each.

    class       after                                           what follows
    preempted   a node was taken away                           started again, any number of times
    lost        a process, a machine or a service failed        started again, as often as the user says
    raised      an exception of the program                     started again, as often as the user says: it most
                                                                likely comes again
    final       a mistake, damage, a module that is missing     given up

Groups of workers (`group.py`) and jobs (`job_process.py`) start again by themselves. Ray starts tasks and the workers
of pools again, TASK_RETRIES times after they were lost.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection
from enum import StrEnum
from typing import Any

from cluster.artefacts.errors import ClozeError, WorkersLostError, exit_codes

TASK_RETRIES = 3
"""Times that Ray starts a task, or a worker of a pool, again whose process or node died."""
_OF_THE_PROGRAM = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, TypeError, ValueError),
)
"""Exceptions of code. A lost peer, a device or a file system raises RuntimeError, OSError or an error of Ray."""
_FINAL = (ImportError, NotImplementedError)
"""Exceptions that every start raises again."""


class Failure(StrEnum):
    """Class of a failure, as in the table above."""

    PREEMPTED = "preempted"
    LOST = "lost"
    RAISED = "raised"
    FINAL = "final"


def restarts(*, lost: int, raised: int = 0) -> dict[Failure, float]:
    """How often something is started again after failures of each class."""
    return {Failure.PREEMPTED: math.inf, Failure.LOST: lost, Failure.RAISED: raised, Failure.FINAL: 0}


def failure_of(errors: Collection[BaseException]) -> Failure:
    """The class of the errors of a group's ranks; none is a ClozeError."""
    from ray.exceptions import RayActorError

    if any(isinstance(error, RayActorError) and error.preempted for error in errors):
        return Failure.PREEMPTED
    if any(isinstance(error, _FINAL) for error in errors):
        return Failure.FINAL
    return Failure.RAISED if all(isinstance(error, _OF_THE_PROGRAM) for error in errors) else Failure.LOST


def failure_of_exit_code(code: int) -> tuple[Failure, str]:
    """The class of a process's failure, and its name: the error class, or the signal of a negative code."""
    if code < 0:
        # Real-time signals have no names.
        names = {each.value: each.name for each in signal.Signals}
        return Failure.LOST, names.get(-code, f"signal {-code}")
    if (error := exit_codes().get(code)) is None:
        return Failure.FINAL, "not documented"
    return Failure.LOST if error.may_pass else Failure.FINAL, error.__name__


def error_of(reference: Any) -> BaseException | None:
    """The exception that a task or a call of an actor raised, or Ray's error if its process was lost; None if neither
    happened."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        ray.get(reference)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        return error
    return None


def result_of(reference: Any, who: str) -> Any:
    """The result of a task or of a call of an actor, which Ray starts again after their processes died.

    Raises:
        ClozeError: as the task raised it.
        WorkersLostError: its process died once more than Ray starts it again.
    """
    import ray
    from ray.exceptions import (
        NodeDiedError,
        OutOfMemoryError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ClozeError):
            raise error.cause from None
        raise
    except (WorkerCrashedError, RayActorError, OutOfMemoryError, NodeDiedError) as error:
        raise WorkersLostError(
            f"{who} died {TASK_RETRIES + 1} times: {error}",
            kept="everything that was finished, and what trainings saved",
            next_step="run the same command again; if it dies at the same place, give it more memory",
        ) from error
