"""The size of a training group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Number of workers, and the resources of each."""

    workers: int
    cpus_per_worker: int
    gpus_per_worker: int
    smaller: tuple[int, ...] = ()
    """Smaller numbers of workers that will do, where the cluster has no room for all."""

    @property
    def choices(self) -> tuple[int, ...]:
        """All numbers of workers that will do."""
        return (self.workers, *self.smaller)
