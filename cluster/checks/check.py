"""The result of one check of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of this machine."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """The command to type or the change to make; empty if the check passed."""
