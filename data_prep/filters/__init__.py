"""The filters that clean and choose documents, one per file; see `base.py`. A chain applies several and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Dropped, FilterConfig, Passed
from data_prep.filters.boilerplate_lines import BoilerplateLinesConfig
from data_prep.filters.c4 import C4Config
from data_prep.filters.fineweb import FinewebConfig
from data_prep.filters.gopher import GopherQualityConfig, GopherRepetitionConfig
from data_prep.filters.language import LanguageConfig
from data_prep.filters.length import LengthConfig
from data_prep.filters.pii import PiiConfig
from data_prep.filters.unicode import UnicodeConfig

_FILTERS: tuple[type[FilterConfig], ...] = (
    BoilerplateLinesConfig,
    C4Config,
    FinewebConfig,
    GopherQualityConfig,
    GopherRepetitionConfig,
    LanguageConfig,
    LengthConfig,
    PiiConfig,
    UnicodeConfig,
)
FILTERS: Mapping[str, type[FilterConfig]] = {one.model_fields["kind"].default: one for one in _FILTERS}
"""The filters."""

if TYPE_CHECKING:
    AnyFilter = FilterConfig
else:
    AnyFilter = Annotated[Union[_FILTERS], Field(discriminator="kind")]  # noqa: UP007
    """Type of a config field that takes any filter."""

EXAMPLES_PER_FILTER = 2
"""Dropped documents shown per filter and shard."""
EXCERPT_CHARACTERS = 200


class FilterChain:
    """Applies filters in order; a document that one drops does not reach the next."""

    def __init__(self, configs: Sequence[AnyFilter]) -> None:
        self._steps = [
            (f"filters.{number:02d}_{config.kind}", config.build()) for number, config in enumerate(configs)
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
