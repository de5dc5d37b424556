"""The context of rendering a page's wikitext."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from data_prep.sources.wikipedia_links import LinkRules
from data_prep.sources.wikipedia_numbers import Values
from data_prep.sources.wikipedia_page import Page
from data_prep.sources.wikipedia_templates import shown_by, template_key

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Context:
    """The rules of the wiki, the page, and what has been left out of its sentences."""

    rules: LinkRules
    page: Page
    dropped: Counter[str] = field(default_factory=Counter)
    """Templates inside lines of text that show nothing here, by `template_key`."""

    def shown_by(self, name: str) -> Callable[[Values], str] | None:
        """The function that renders the template of this name; None for a template that shows no text."""
        return shown_by(name, self.page)

    def count_dropped(self, name: str) -> None:
        """Note that a template was left out of a line of text."""
        self.dropped[template_key(name)[:_LONGEST_NAME]] += 1
