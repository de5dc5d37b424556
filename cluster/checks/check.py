"""The answer to one question about a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question about this machine."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """What to type or change; empty when all is well."""
