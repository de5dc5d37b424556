"""Drop documents that are too short or too long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed


class LengthConfig(FilterConfig):
    """Limits on the length of a document."""

    kind: Literal["length"] = "length"
    min_characters: int = Field(default=0, ge=0)
    max_characters: int | None = Field(default=None, gt=0)
    """None is no limit."""


def build(config: LengthConfig) -> Apply:
    """A filter that only looks."""
    most = float("inf") if config.max_characters is None else config.max_characters

    def apply(document: Document) -> Passed | Dropped:
        if len(document.text) < config.min_characters:
            return Dropped("too_short")
        return Dropped("too_long") if len(document.text) > most else Passed(document)

    return apply
