"""The documents of a shard that remain after the earlier methods, in blocks, and the hashes of their word n-grams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_prep.dedup.records import number_documents, read_rows
from data_prep.documents import one_chunk, read_selected
from data_prep.hashing import mix
from data_prep.ragged import Ragged, offsets_of, string_offsets
from data_prep.selection import Selection, load_selection
from data_prep.text.words import Words, split_joined


@dataclass(frozen=True, slots=True)
class Survivors:
    """A document shard, and where the decisions about it lie."""

    documents: Path
    """The document shard."""
    shard: int
    """Its number."""
    equal: Path | None = None
    """Directory with the documents that are equal to an earlier one; None where they stay."""
    near: Path | None = None
    """Directory with the documents that are nearly equal to an earlier one; None where they stay."""
    selection: Path | None = None
    """The rows and texts without these that are left once repeated paragraphs are removed; None where they stay."""

    def load(self) -> Selection:
        """The rows and texts that are left."""
        if self.selection is not None:
            return load_selection(self.selection)
        rows = np.arange(self.num_documents())
        for directory in (self.equal, self.near):
            rows = np.setdiff1d(rows, read_rows(directory, self.shard))
        return Selection.whole(rows)

    def num_documents(self) -> int:
        """Documents in the shard."""
        return pq.read_metadata(str(self.documents)).num_rows


BLOCK_BYTES = 1 << 20
"""UTF-8 bytes of text that are worked on at a time; a longer text is a block by itself."""


def read_blocks(
    documents: Path, shard: int, selection: Selection
) -> Iterator[tuple[np.ndarray, pa.StringArray]]:
    """([n] uint64 indices of documents, their [n] texts) of the selected rows of a shard, a block at a time."""
    position = 0
    for table in read_selected(documents, ("text",), selection):
        for first, block in text_blocks(one_chunk(table["text"])):
            rows = selection.rows[position + first : position + first + len(block)]
            yield number_documents(shard, rows), block
        position += table.num_rows


def text_blocks(texts: pa.StringArray) -> Iterator[tuple[int, pa.StringArray]]:
    """(position of the first, some texts): all of them in blocks of BLOCK_BYTES."""
    offsets = string_offsets(texts).astype(np.int64)
    start = 0
    while start < len(texts):
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES, side="right")) - 1
        end = max(end, start + 1)
        yield start, texts[start:end]
        start = end


def join_texts(texts: pa.StringArray) -> tuple[str, np.ndarray]:
    """All texts end to end, and [texts + 1] int64 characters before each and in all of them."""
    data = Ragged.of_strings(texts).values.tobytes()
    lengths = pc.utf8_length(texts).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
    return data.decode("utf-8"), offsets_of(lengths)


def shingle(texts: pa.StringArray, ngram: int, *, fold_digits: bool = False) -> Ragged:
    """Hash the n-grams of words of every text to uint64.

    Words are as in `words.py`. A text with fewer than `ngram` words has one n-gram of all of them; one without words
    has none.

    Args:
        fold_digits: read every digit as 0.
    """
    words = hash_words(split_joined(*join_texts(texts), fold_digits=fold_digits))
    sums, following = hash_windows(words, ngram)
    is_start = (following >= ngram) | (following == np.repeat(words.lengths, words.lengths))
    counts = np.where(words.lengths >= ngram, words.lengths - ngram + 1, np.minimum(words.lengths, 1))
    return Ragged(mix(sums[is_start]), offsets_of(counts))


def hash_windows(words: Ragged, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Combine the hashes of `size` words from each word on, fewer where its text ends.

    Args:
        words: uint64 hashes of the words of every text.

    Returns:
        [words] uint64 sums, to be mixed; and [words] int64, how many words its text has from each on.
    """
    lengths, total = words.lengths, len(words.values)
    following = np.repeat(words.offsets[1:], lengths) - np.arange(total)
    late = np.flatnonzero(following < size)
    padded = np.concatenate([words.values, np.zeros(size, dtype=np.uint64)])
    sums = words.values.copy()
    with np.errstate(over="ignore"):
        for offset in range(1, size):
            # An odd factor for each place in an n-gram.
            factor = mix(np.array([offset], dtype=np.uint64))[0] | np.uint64(1)
            own = padded[offset : offset + total] * factor
            own[late[following[late] <= offset]] = 0
            sums += own
    return sums, following


def hash_words(words: Words) -> Ragged:
    """Hash the words of every text to uint64, in order."""
    from data_prep.text.word_kernel import hash_runs

    hashes = np.empty(words.num_words, dtype=np.uint64)
    hash_runs(words.codes, words.starts[:-1], words.starts[1:], hashes)
    return Ragged(mix(hashes), words.first_words)
