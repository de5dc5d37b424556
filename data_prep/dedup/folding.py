"""Text without what does not matter to whether it is the same: case, accents, digits, punctuation.

Everything works on the code points of many texts at once, with one table, because a corpus has more characters
than anything else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.ragged import Ragged

BLOCK_BYTES = 1 << 20
"""UTF-8 bytes of text that are worked on at a time; a longer text is a block by itself."""
SEPARATOR, IGNORED = np.uint32(0), np.uint32(0xFFFFFFFF)
"""What stands for a character that no word holds, and for one that changes nothing in the word it is in."""
_NUM_CODE_POINTS = 0x110000
_FIRST_PLAIN = 0x20000
"""From here on there are ideographs, which have no case, and hardly anything else."""


def text_blocks(texts: pa.StringArray) -> Iterator[tuple[int, pa.StringArray]]:
    """(position of the first, some texts): all of them in blocks of BLOCK_BYTES."""
    offsets = byte_offsets(texts)
    start = 0
    while start < len(texts):
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES, side="right")) - 1
        end = max(end, start + 1)
        yield start, texts[start:end]
        start = end


def byte_offsets(texts: pa.StringArray) -> np.ndarray:
    """[texts + 1] int64 positions in the bytes of the array's buffer."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)
    return offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)


def decode(texts: pa.StringArray) -> Ragged:
    """The uint32 code points of every text."""
    bounds = byte_offsets(texts)[[0, -1]]
    data = bytes(memoryview(texts.buffers()[2] or b"")[bounds[0] : bounds[1]])
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(pc.utf8_length(texts).to_numpy(), out=offsets[1:])  # pyright: ignore[reportAttributeAccessIssue]
    return Ragged(np.frombuffer(data.decode("utf-8").encode("utf-32-le"), dtype="<u4"), offsets)


def byte_positions(points: np.ndarray) -> np.ndarray:
    """[code points + 1] int64 UTF-8 bytes before each code point and in all of them."""
    widths = np.ones(len(points), dtype=np.int8)
    for first in (0x80, 0x800, 0x10000):
        widths += points >= first
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(widths, dtype=np.int64)])


@lru_cache(maxsize=1)
def folding_table() -> np.ndarray:
    """[code points] uint32: what every code point is folded to.

    Letters become lower case without accents, decimal digits `0`; combining marks and format characters are
    IGNORED; all else (punctuation, symbols, white space, controls) is SEPARATOR.
    """
    table = np.arange(_NUM_CODE_POINTS, dtype=np.uint32)
    table[:_FIRST_PLAIN] = [_fold(chr(point)) for point in range(_FIRST_PLAIN)]
    # Tags and variation selectors beyond the ideographs.
    table[0xE0000:] = IGNORED
    return table


def _fold(character: str) -> int:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return int(IGNORED)
    if category == "Nd":
        return ord("0")
    if category[0] not in "LNM":
        return int(SEPARATOR)
    lower = character.lower()[0]
    base = [part for part in unicodedata.normalize("NFD", lower) if unicodedata.category(part) != "Mn"]
    # A Korean syllable has several parts and stays what it is.
    return ord(base[0]) if len(base) == 1 else ord(lower)
