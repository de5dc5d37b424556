"""Remove the lines that surround the text of a web page: cookie notices, sharing, copyright, navigation.

In the manner of CCNet (Wenzek et al. 2020) and C4 (Raffel et al. 2020, section 2.2), but by rules instead of by
counting over the corpus. Only short lines are removed, so that prose that mentions cookies stays.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed

NOTICES = (
    "use cookies",
    "uses cookies",
    "use of cookies",
    "accept cookies",
    "accept all cookies",
    "cookie policy",
    "cookie settings",
    "privacy policy",
    "terms of use",
    "terms of service",
    "terms and conditions",
    "enable javascript",
    "javascript is disabled",
    "javascript is required",
    "requires javascript",
    "browser does not support",
    "all rights reserved",
)
COMMANDS = (
    "read more",
    "continue reading",
    "show more",
    "load more",
    "learn more",
    "click here",
    "share on",
    "share this",
    "tweet this",
    "follow us",
    "log in",
    "sign in",
    "sign up",
    "subscribe",
    "skip to content",
    "skip to main content",
    "back to top",
    "leave a comment",
    "leave a reply",
    "post a comment",
    "add to cart",
    "related posts",
    "previous post",
    "next post",
    "print this page",
    "powered by",
)
_COPYRIGHT_STARTS = "©", "(c)", "copyright"
_COPYRIGHT = re.compile(r"(?:©|\(c\)|copyright\b).{0,20}?(?:19|20)\d\d")
_LINK_SEPARATORS = re.compile(r"\s[|>»›·•/]\s|[|»›]")
SEPARATORS = "|>»›·•/"
"""Each of them holds at least one of these characters."""

MAX_LINE_CHARACTERS = 1000
"""Longer lines are never boilerplate."""


class BoilerplateLinesConfig(FilterConfig):
    """Lines that are removed. The phrases are English; other languages need their own."""

    kind: Literal["boilerplate_lines"] = "boilerplate_lines"
    notices: tuple[str, ...] = NOTICES
    """Lines of at most `max_notice_words` words that hold one, in capitals or not, are removed."""
    max_notice_words: int = Field(default=30, ge=0)
    """Words of the longest line that is seen as a notice."""
    commands: tuple[str, ...] = COMMANDS
    """Lines of at most `max_command_words` words that begin with one, in capitals or not, are removed."""
    max_command_words: int = Field(default=8, ge=0)
    """Words of the longest line that is seen as a command."""
    copyright: bool = True
    """Remove lines of at most `max_notice_words` words that begin with a copyright mark and a year."""
    min_separators: int = Field(default=2, ge=0)
    """Remove lines that hold at least so many separators of links, such as `|`, `»` or ` > `, and less than
    `max_link_words` words for each link; 0 keeps them."""
    max_link_words: int = Field(default=5, ge=1)
    """A line of links with at least this many words per link, on average, is text."""

    def build(self) -> Apply:
        """A filter that removes lines, counts them as `notices`, `commands`, `copyright` and `navigation`, and drops
        documents that become empty."""
        notices = tuple(phrase.lower() for phrase in self.notices)
        commands = tuple(phrase.lower() for phrase in self.commands)
        most_words = max(self.max_command_words, self.max_notice_words)
        phrases = (*notices, *commands, *(_COPYRIGHT_STARTS if self.copyright else ()))

        def kind_of(line: str) -> str | None:
            if not line or len(line) > MAX_LINE_CHARACTERS:
                return None
            # No rule about phrases looks at lines of many words, and counting all of them costs.
            num_words = len(line.split(None, most_words))
            if num_words <= self.max_command_words and line.startswith(commands):
                return "commands"
            if num_words <= self.max_notice_words:
                if any(phrase in line for phrase in notices):
                    return "notices"
                if self.copyright and _COPYRIGHT.match(line):
                    return "copyright"
            if not self.min_separators:
                return None
            separators = len(_LINK_SEPARATORS.findall(line))
            is_navigation = len(line.split()) < self.max_link_words * (separators + 1)
            return "navigation" if separators >= self.min_separators and is_navigation else None

        def apply(document: Document) -> Passed | Dropped:
            lowered = document.text.lower()
            present = [phrase for phrase in phrases if phrase in lowered]
            suspects = (
                (number, line)
                for number, line in enumerate(lowered.split("\n"))
                if any(phrase in line for phrase in present)
                or 0 < self.min_separators <= sum(map(line.count, SEPARATORS))
            )
            kinds = {number: kind for number, line in suspects if (kind := kind_of(line.strip()))}
            if not kinds:
                return Passed(document)
            found = document.text.split("\n")
            text = "\n".join(line for number, line in enumerate(found) if number not in kinds)
            counts = Counter(kinds.values())
            return Passed.with_text(document, text, **counts) if text.strip() else Dropped("only_boilerplate")

        return apply
