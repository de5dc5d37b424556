"""Parts that are closed when training ends, whatever fails meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None: ...


PartT = TypeVar("PartT", bound=_Closable)


def closed_by(ending: ExitStack, part: PartT) -> PartT:
    """Have `ending` close a part; returns the part.

    The error that training ends with stays the one that is raised: a part that fails to close only adds a note to it.
    After a good end, the first such failure is raised, and the later ones are its notes.
    """

    def leave(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            part.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Closing {type(part).__name__} failed too: {type(failure).__name__}: {failure}")

    ending.push(leave)
    return part
