"""Requests of an objective for its samples: their format, and the annotations beside their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal[
    "contiguous",
    "best_fit",
    "full_sentences",
    "doc_sentences",
    "segment_pair",
    "sentence_pair",
    "sentences",
]
"""How samples are cut from documents; `pipeline/samples/formats/__init__.py` describes each."""
SINGLE_FORMATS: tuple[Format, ...] = (
    "contiguous",
    "best_fit",
    "full_sentences",
    "doc_sentences",
    "sentences",
)
"""Formats in which a piece is one slice of a document."""
PAIR_FORMATS: tuple[Format, ...] = ("segment_pair", "sentence_pair")
"""Formats in which a piece is a pair of segments (Devlin et al. 2019, section 3.1, task 2)."""
Relation = Literal["nsp", "sop"]
"""Where second segments come from: next or random (Devlin et al. 2019), or right or swapped order (Lan et al. 2020)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples that an objective asks for."""

    formats: tuple[Format, ...]
    """Formats it can learn from. The first is the format of its paper, taken when the configuration names none."""
    length: int
    """Tokens of a sample as it is read. Differs from the sequence length where noise shortens the text (T5)."""
    sentence_starts: bool = False
    """Whether `Packed.sentence_starts` is needed."""
    langs: bool = False
    """Whether every sample must be in one language, named by `Packed.langs`."""
    relation: Relation | None = None
    """The relation of the segments of a pair; None reads plain text."""
    positions: int = 0
    """Tokens of the longest text that the network reads or writes, where that may be more than the sequence length."""
