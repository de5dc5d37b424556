"""Finders of personal data in a text, each a function from a text to spans.

Spans are (start, end) in characters; of those that overlap, the first counts. No span splits a pair of brackets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from data_prep.text import table

Spans = Iterable[tuple[int, int]]


_WORDS: Mapping[str, str] = table("number_words")


def words(name: str) -> str:
    """The words under a name of `number_words.yaml`, as alternatives of a regular expression."""
    return "|".join(_WORDS[name].split())
