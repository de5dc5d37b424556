"""Finders of personal data in a text, each a function from a text to spans.

Spans are (start, end) in characters, ascending, without overlaps. No span splits a pair of brackets.
"""

from __future__ import annotations

from collections.abc import Iterator

Spans = Iterator[tuple[int, int]]
