"""A chain of filters at work, counting what each passes, changes and drops, with examples for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_prep.document import Document
from data_prep.filters import FILTERS, AnyFilter, Dropped

EXAMPLES_PER_FILTER = 2
"""Dropped documents shown per filter and shard."""
EXCERPT_CHARACTERS = 200


class FilterChain:
    """Applies filters in order; a document that one drops does not reach the next."""

    def __init__(self, configs: Sequence[AnyFilter]) -> None:
        self._steps = [
            (f"filters.{number:02d}_{config.kind}", FILTERS[config.kind].build(config))
            for number, config in enumerate(configs)
        ]
        self.counts: Counter[str] = Counter()
        """`filters.NUMBER_KIND.kept`, `.dropped`, `.changed`, `.dropped.REASON` and the filters' own counts."""
        self.examples: list[dict[str, Any]] = []
        """Of the dropped documents the first few per filter: `filter`, `reason`, `doc_id`, `excerpt`."""

    def apply(self, document: Document) -> Document | None:
        """The document as it leaves the chain; None when a filter dropped it."""
        for name, apply in self._steps:
            outcome = apply(document)
            if isinstance(outcome, Dropped):
                self._count_dropped(name, outcome, document)
                return None
            self.counts[f"{name}.kept"] += 1
            if outcome.document is not document:
                self.counts[f"{name}.changed"] += 1
            for key, count in outcome.counts.items():
                self.counts[f"{name}.{key}"] += count
            document = outcome.document
        return document

    def _count_dropped(self, name: str, outcome: Dropped, document: Document) -> None:
        self.counts[f"{name}.dropped"] += 1
        self.counts[f"{name}.dropped.{outcome.reason}"] += 1
        if self.counts[f"{name}.dropped"] <= EXAMPLES_PER_FILTER:
            excerpt = document.text[:EXCERPT_CHARACTERS]
            self.examples.append(
                {"filter": name, "reason": outcome.reason, "doc_id": document.doc_id, "excerpt": excerpt}
            )
