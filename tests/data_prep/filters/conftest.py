"""Filters as tests use them: made from plain settings, applied to plain text."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from data_prep.document import Document
from data_prep.filters import AnyFilter, Dropped, Passed

ADAPTER = TypeAdapter(AnyFilter)


class Bench:
    """A filter on a bench: text in, text or reason out."""

    def __init__(self, kind: str, **settings: Any) -> None:
        config = ADAPTER.validate_python({"kind": kind} | settings)
        self.apply = config.build()

    def outcome(self, text: str, lang: str = "en") -> Passed | Dropped:
        return self.apply(Document("test:1", "test", "file", "Title", lang, text))

    def passed(self, text: str) -> Passed:
        outcome = self.outcome(text)
        assert isinstance(outcome, Passed), outcome
        return outcome

    def text(self, text: str) -> str:
        """What is left of a text that passes."""
        return self.passed(text).document.text

    def counts(self, text: str) -> dict[str, int]:
        return dict(self.passed(text).counts)

    def lang(self, text: str, lang: str = "en") -> str | None:
        """Language of a text that passes; None when it is dropped."""
        outcome = self.outcome(text, lang)
        return outcome.document.lang if isinstance(outcome, Passed) else None

    def reason(self, text: str, lang: str = "en") -> str | None:
        """Why a text is dropped; None when it passes."""
        outcome = self.outcome(text, lang)
        return outcome.reason if isinstance(outcome, Dropped) else None


@pytest.fixture(scope="session")
def bench() -> Callable[..., Bench]:
    """Makes a filter from its kind and settings: `bench("length", min_words=3)`."""
    return Bench
