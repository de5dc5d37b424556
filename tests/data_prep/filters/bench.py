"""Filters as tests use them: made from plain settings, applied to plain text."""

from typing import Any

from pydantic import TypeAdapter

from data_prep.document import Document
from data_prep.filters import AnyFilter, Dropped, Passed
from data_prep.filters.base import FilterConfig

ADAPTER: TypeAdapter[FilterConfig] = TypeAdapter(AnyFilter)


def document(text: str, lang: str = "en") -> Document:
    return Document("test:1", "test", "file", "Title", lang, text)


class Bench:
    """A filter on a bench: text in, text or reason out."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.apply = ADAPTER.validate_python({"kind": kind} | settings).build()

    def passed(self, text: str) -> Passed:
        outcome = self.apply(document(text))
        assert isinstance(outcome, Passed), outcome
        return outcome

    def text(self, text: str) -> str:
        """What is left of a text that passes."""
        return self.passed(text).document.text

    def counts(self, text: str) -> dict[str, int]:
        return dict(self.passed(text).counts)

    def reason(self, text: str) -> str | None:
        """Why a text is dropped; None when it passes."""
        outcome = self.apply(document(text))
        return outcome.reason if isinstance(outcome, Dropped) else None
