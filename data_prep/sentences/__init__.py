"""Where sentences begin: found by a library, moved to the white space ahead of them.

A sentence begins where a segmenter says so, and after every line break. The cut lies right before the last
white-space character ahead of it, so that the space goes with the word that it precedes, as byte-level tokenizers
have it; where no space is, as in Chinese, the cut lies right at the sentence.

All work is done on the UTF-8 bytes of a whole batch, end to end as Arrow holds them, without copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from data_prep.ragged import Ragged
from data_prep.sentences import blingfire, sentencex
from data_prep.sentences.cuts import cuts_ahead_of
from data_prep.sentences.joins import is_sentence_start
from data_prep.sentences.pieces import pieces_of

NOT_FOR_BLINGFIRE = frozenset(
    [
        *(
            "zh",
            "yue",
            "wuu",
            "lzh",
            "ja",
        ),  # cuts between a full stop and the quotation mark that closes behind it
        *("hi", "mr", "ne", "sa", "mai", "bho", "new", "awa", "mag"),  # danda
        *("bn", "as", "bpy", "mni", "pa", "or"),  # danda
        *("my", "shn", "mnw", "am", "ti", "gez", "hy", "hyw", "sat"),  # full stops of their own
        "el",  # question mark
    ]
)
"""ISO 639 codes of languages some of whose sentence ends BlingFire does not know and sentencex does."""

_ENGLISH = frozenset({"en", "eng", ""})
_READ_BY_BLINGFIRE: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {"blingfire": lambda lang: lang not in NOT_FOR_BLINGFIRE, "sentencex": lambda lang: False}
)
"""Whether BlingFire, and not sentencex, reads a language; by name of the method."""


def cut_sentences(texts: pa.Array, langs: pa.Array, method: str) -> Ragged:
    """Where the sentences of texts begin.

    Args:
        texts: [documents] string.
        langs: [documents] string, ISO 639 codes of their languages.
        method: `blingfire`, which leaves languages that BlingFire is wrong for to sentencex; `sentencex` for all
            languages; `none` for no cuts at all.

    Returns:
        Per document the ascending UTF-8 byte offsets (int64) of its sentences but the first, each at the start of
        a character. No sentence is white space only, unless its whole document is.
    """
    text = Ragged.of_strings(texts)
    data, offsets = text.values, text.offsets
    if method == "none" or not len(data):
        return Ragged(np.empty(0, dtype=np.int64), np.zeros(len(texts) + 1, dtype=np.int64))
    reads_with_blingfire = _READ_BY_BLINGFIRE[method]
    starts, pieces = [], []
    for lang, (start, end) in zip(langs.to_pylist(), pairwise(offsets.tolist()), strict=True):
        if reads_with_blingfire(lang):
            pieces += pieces_of(data, start, end, blingfire.PIECE_BYTES)
        else:
            own = pieces_of(data, start, end, sentencex.PIECE_BYTES)
            starts.append(sentencex.sentence_starts(data, own, lang))
    starts.append(_by_blingfire(data, pieces, offsets, langs))
    return cuts_ahead_of(np.concatenate(starts), data, offsets)


def _by_blingfire(
    data: np.ndarray, pieces: list[tuple[int, int]], offsets: np.ndarray, langs: pa.Array
) -> np.ndarray:
    starts = blingfire.sentence_starts(data, pieces)
    rows = np.searchsorted(offsets, starts, side="right") - 1
    english = np.array([lang in _ENGLISH for lang in langs.to_pylist()], dtype=bool)[rows]
    return starts[is_sentence_start(data, starts, offsets[rows], english)]
