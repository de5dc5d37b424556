"""The filters that clean and choose documents, one per file; see `base.py`. A chain applies several and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from data_prep.document import Document
from data_prep.filters import (
    boilerplate_lines,
    c4,
    fineweb,
    gopher_quality,
    gopher_repetition,
    language,
    length,
    pii,
    unicode,
)
from data_prep.filters.base import Apply, Dropped, Passed

FILTERS: Mapping[str, Callable[[Any], Apply]] = MappingProxyType(
    {
        "boilerplate_lines": boilerplate_lines.build,
        "c4": c4.build,
        "fineweb": fineweb.build,
        "gopher_quality": gopher_quality.build,
        "gopher_repetition": gopher_repetition.build,
        "language": language.build,
        "length": length.build,
        "pii": pii.build,
        "unicode": unicode.build,
    }
)
"""Makes a filter from its config, by the config's `kind`. It loads what the filter needs, and raises
`MissingInputError` where a file that the config names is not there."""

AnyFilter = Annotated[
    boilerplate_lines.BoilerplateLinesConfig
    | c4.C4Config
    | fineweb.FinewebConfig
    | gopher_quality.GopherQualityConfig
    | gopher_repetition.GopherRepetitionConfig
    | language.LanguageConfig
    | length.LengthConfig
    | pii.PiiConfig
    | unicode.UnicodeConfig,
    Field(discriminator="kind"),
]
"""Type of a config field that takes any filter."""

EXAMPLES_PER_FILTER = 2
"""Dropped documents shown per filter and shard."""
EXCERPT_CHARACTERS = 200


class FilterChain:
    """Applies filters in order; a document that one drops does not reach the next."""

    def __init__(self, configs: Sequence[AnyFilter]) -> None:
        self._steps = [
            (f"filters.{number:02d}_{config.kind}", FILTERS[config.kind](config))
            for number, config in enumerate(configs)
        ]
        self.counts: Counter[str] = Counter()
        """`filters.NUMBER_KIND.kept`, `.dropped`, `.changed`, `.dropped.REASON` and the filters' own counts."""
        self.examples: list[dict[str, Any]] = []
        """The first few dropped documents of each filter: `filter`, `reason`, `doc_id`, `excerpt`."""

    def apply(self, document: Document) -> Document | None:
        """The document as it leaves the chain; None when a filter dropped it."""
        counts = self.counts
        for name, apply in self._steps:
            outcome = apply(document)
            if isinstance(outcome, Dropped):
                counts[f"{name}.dropped"] += 1
                counts[f"{name}.dropped.{outcome.reason}"] += 1
                if counts[f"{name}.dropped"] <= EXAMPLES_PER_FILTER:
                    example = {"filter": name, "reason": outcome.reason, "doc_id": document.doc_id}
                    self.examples.append(example | {"excerpt": document.text[:EXCERPT_CHARACTERS]})
                return None
            counts[f"{name}.kept"] += 1
            if outcome.document is not document:
                counts[f"{name}.changed"] += 1
            for key, count in outcome.counts.items():
                counts[f"{name}.{key}"] += count
            document = outcome.document
        return document


__all__ = ["FILTERS", "AnyFilter", "Dropped", "FilterChain", "Passed"]
