"""Which data each update reads, when some of it is left out.

The data of a run is a list of global batches, numbered by data step. Update number `u` reads the u-th data step that is
not left out: without any, both numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable


class SkippedData:
    """The data steps that a run leaves out."""

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._steps = sorted(set(steps))

    @property
    def steps(self) -> tuple[int, ...]:
        """The data steps left out, ascending."""
        return tuple(self._steps)

    def data_step(self, update: int) -> int:
        """The data step that an update reads."""
        found = update
        for step in self._steps:
            if step > found:
                break
            found += 1
        return found

    def with_step(self, step: int) -> SkippedData:
        """These and one more."""
        return SkippedData([*self._steps, step])
