"""Filters as tests use them: made from plain settings, applied to plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from data_prep.document import Document
from data_prep.filters import FILTERS, AnyFilter, Dropped, Passed
from data_prep.filters.base import Apply

ADAPTER = TypeAdapter(AnyFilter)


class Bench:
    """A filter on a bench: text in, text or reason out."""

    def __init__(self, kind: str, **settings: Any) -> None:
        config = ADAPTER.validate_python({"kind": kind} | settings)
        self.apply: Apply = FILTERS[config.kind](config)

    def outcome(self, text: str, lang: str = "en") -> Passed | Dropped:
        return self.apply(Document("test:1", "test", "file", "Title", lang, text))

    def text(self, text: str) -> str:
        """What is left of a text that passes."""
        outcome = self.outcome(text)
        assert isinstance(outcome, Passed), outcome
        return outcome.document.text

    def reason(self, text: str, lang: str = "en") -> str | None:
        """Why a text is dropped; None when it passes."""
        outcome = self.outcome(text, lang)
        return outcome.reason if isinstance(outcome, Dropped) else None

    def counts(self, text: str) -> dict[str, int]:
        outcome = self.outcome(text)
        assert isinstance(outcome, Passed), outcome
        return dict(outcome.counts)


@pytest.fixture(scope="session")
def bench() -> Callable[..., Bench]:
    """Makes a filter from its kind and settings: `bench("length", min_words=3)`."""
    return Bench
