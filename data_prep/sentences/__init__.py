"""Where sentences begin: found by a library, moved to the white space ahead of them.

A sentence begins where a segmenter says so, and after every line break. The cut lies right before the last
white-space character ahead of it, so that the space goes with the word that it precedes, as byte-level tokenizers
have it; where no space is, as in Chinese, the cut lies right at the sentence.

All work is done on the UTF-8 bytes of a whole batch, end to end as Arrow holds them, without copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from data_prep.ragged import Ragged
from data_prep.sentences import blingfire, sentencex
from data_prep.sentences.cuts import cuts_ahead_of
from data_prep.sentences.joins import is_sentence_start
from data_prep.sentences.pieces import all_pieces_of, pieces_of

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
    has_blingfire, is_english = _READ_BY_BLINGFIRE[method], _ENGLISH.__contains__
    by_blingfire = _by_lang(langs, has_blingfire)
    starts = [_by_blingfire(data, offsets, by_blingfire, _by_lang(langs, is_english))]
    for row in np.flatnonzero(~by_blingfire).tolist():
        pieces = pieces_of(data, int(offsets[row]), int(offsets[row + 1]), sentencex.PIECE_BYTES)
        starts.append(sentencex.sentence_starts(data, pieces, langs[row].as_py()))
    return cuts_ahead_of(np.concatenate(starts), data, offsets)


def _by_lang(langs: pa.Array, applies: Callable[[str], bool]) -> np.ndarray:
    """[documents] bool: what is true of their languages."""
    encoded = langs.dictionary_encode()
    return np.array(list(map(applies, encoded.dictionary.to_pylist())), dtype=bool)[encoded.indices]


def _by_blingfire(
    data: np.ndarray, offsets: np.ndarray, chosen: np.ndarray, english: np.ndarray
) -> np.ndarray:
    """Starts of the sentences of chosen documents; `chosen` and `english` are [documents] bool."""
    begins, ends = all_pieces_of(data, offsets[:-1][chosen], offsets[1:][chosen], blingfire.PIECE_BYTES)
    starts = blingfire.sentence_starts(data, begins, ends)
    rows = np.searchsorted(offsets, starts, side="right") - 1
    return starts[is_sentence_start(data, starts, offsets[rows], english[rows])]
