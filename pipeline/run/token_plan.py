"""The tokens that the steps of a run read: its batch sizes and sequence lengths, and its length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.samples.batch_plan import BatchPlan

UNBOUNDED_STEPS = 10**9
"""Steps of a run that only its time budget ends."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Samples and sequence lengths by step."""

    batches: BatchPlan
    """Samples of every step."""
    sequence_length: int
    """Tokens per sample after the phases."""
    phases: tuple[tuple[int, int], ...]
    """(steps, tokens per sample) of each phase, one after the other from step 0 on."""
    steps: int | None
    """Steps that the configuration gives; None where only a budget says how long the run is."""
    token_budget: int | None
    """The run ends after so many tokens."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TokenPlan:
        """The plan of a configuration as plain data: its `batch`, `steps` and `budget`."""
        batch = settings["batch"]
        length = batch["sequence_length"]
        warmup = tuple((stage["steps"], stage["samples"]) for stage in batch.get("warmup") or ())
        return cls(
            batches=BatchPlan(batch["samples"], batch["micro_batch_size"], warmup),
            sequence_length=length,
            phases=tuple(
                (phase["steps"], phase.get("sequence_length") or length)
                for phase in batch.get("phases") or ()
            ),
            steps=settings.get("steps"),
            token_budget=(settings.get("budget") or {}).get("tokens"),
        )

    @property
    def num_steps(self) -> int:
        """Updates of the whole run; UNBOUNDED_STEPS where only its time ends it."""
        bounds = [self.steps or UNBOUNDED_STEPS]
        if self.token_budget is not None:
            # The fewest steps that read so many tokens.
            bounds.append(bisect_left(range(self.token_budget), self.token_budget, key=self.tokens_before))
        return min(bounds)

    def sequence_length_at(self, step: int) -> int:
        """Tokens per sample at a step."""
        for steps, length in self.phases:
            if step < steps:
                return length
            step -= steps
        return self.sequence_length

    def tokens_before(self, step: int) -> int:
        """Tokens of text, before noise, that the steps before `step` read."""
        total, first = 0, 0
        for steps, length in self.phases:
            last = min(step, first + steps)
            if last > first:
                total += length * self.batches.samples_between(first, last)
            first += steps
        if step > first:
            total += self.sequence_length * self.batches.samples_between(first, step)
        return total
