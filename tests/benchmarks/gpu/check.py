"""The outcome of one check on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A difference that was found, beside the largest one allowed."""

    what: str
    found: float
    allowed: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed; one that is no number is not."""
        return self.found <= self.allowed

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        return f"{verdict}: {self.what}: {self.found:.2g}, allowed {self.allowed:.2g}"
