"""Results of Ray's tasks and of actors' calls, with errors that people understand."""

from __future__ import annotations

from typing import Any

from cluster.artefacts.errors import ClozeError, WorkersLostError


def task_result(reference: Any, *, lost: str, kept: str, next_step: str) -> Any:
    """The result of a task, or of a call of an actor.

    Args:
        lost: what died, with how often, for the message; `kept` and `next_step` as in every error.

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
        raise WorkersLostError(f"{lost}: {error}", kept=kept, next_step=next_step) from error
