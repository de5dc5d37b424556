"""Drop documents that are too short or too long, in characters or in words."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed
from data_prep.text.words import word_spans


class LengthLimits(BaseModel):
    """Limits on the length of a document; both ends are allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_characters: int = Field(default=0, ge=0)
    """Documents of fewer characters are dropped."""
    max_characters: int | None = Field(default=None, gt=0)
    """None is no limit."""
    min_words: int = Field(default=0, ge=0)
    """In scripts without spaces every character counts as a word."""
    max_words: int | None = Field(default=None, gt=0)
    """None is no limit."""


class LengthConfig(FilterConfig, LengthLimits):
    """Limits on the length of a document."""

    kind: Literal["length"] = "length"
    languages: dict[str, LengthLimits] = Field(default={})
    """Other limits for documents of these languages (ISO 639-1), such as fewer characters for `zh`."""

    def build(self) -> Apply:
        """A filter that only looks."""

        def apply(document: Document) -> Passed | Dropped:
            limits = self.languages.get(document.lang, self)
            outcome = _compare(len(document.text), limits.min_characters, limits.max_characters)
            if outcome is None and (limits.min_words or limits.max_words):
                outcome = _compare(word_spans(document.text).num_words, limits.min_words, limits.max_words)
            return outcome or Passed(document)

        return apply


def _compare(size: int, least: int, most: int | None) -> Dropped | None:
    if size < least:
        return Dropped("too_short")
    return Dropped("too_long") if most is not None and size > most else None
