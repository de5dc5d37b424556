"""Finders of personal data in a text, each a function from a text to spans.

Spans are (start, end) in characters; of those that overlap, the first counts. No span splits a pair of brackets.
"""

from __future__ import annotations

from collections.abc import Iterable

Spans = Iterable[tuple[int, int]]
