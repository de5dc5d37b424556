"""The input formats by name: how samples are cut from documents (Liu et al. 2019, section 4.2 and table 2).

| format | a sample | in the papers |
|---|---|---|
| `contiguous` | a full row of the shuffled stream, cut anywhere | BERT-like pre-training without NSP; GPT |
| `best_fit` | documents, whole where they fit, packed into full rows | Ding et al. 2024 |
| `full_sentences` | whole sentences, across documents | FULL-SENTENCES |
| `doc_sentences` | whole sentences, a piece never crosses a document | DOC-SENTENCES |
| `sentences` | single sentences, each a piece | ELMo |
| `segment_pair` | two segments of some sentences, filling a row | SEGMENT-PAIR+NSP: BERT, ALBERT |
| `sentence_pair` | two natural sentences | SENTENCE-PAIR+NSP |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from pipeline.samples.formats.packing import best_fit, doc_sentences, sentences
from pipeline.samples.formats.pairs import segment_pair, sentence_pair
from pipeline.samples.formats.stream import Contiguous, FullSentences
from pipeline.samples.packed import FormatInput, RowFormat

_SINGLE: Mapping[str, Callable[[FormatInput], RowFormat]] = {
    "contiguous": Contiguous,
    "best_fit": best_fit,
    "full_sentences": FullSentences,
    "doc_sentences": doc_sentences,
    "sentences": sentences,
}
"""Formats whose pieces are single slices of documents."""
_PAIRS: Mapping[str, Callable[[FormatInput], RowFormat]] = {
    "segment_pair": segment_pair,
    "sentence_pair": sentence_pair,
}
"""Formats whose pieces are pairs of segments (Devlin et al. 2019, section 3.1, task 2)."""
FORMATS = {**_SINGLE, **_PAIRS}
SINGLE_FORMATS, PAIR_FORMATS = tuple(_SINGLE), tuple(_PAIRS)

if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[tuple(FORMATS)]
    """The name of a format."""
