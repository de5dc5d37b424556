"""Documents in memory whose token ids are all different, so that a misplaced one shows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from data_prep.ragged import Ragged
from data_prep.token_files import TokenArrays
from data_prep.token_writer import EncodedBatch
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.formats import PAIR_FORMATS
from pipeline.samples.index_cache import IndexCache
from pipeline.samples.mixture import Sampling, StoreShare
from pipeline.samples.packed import FormatInput, Packed, Relation, RowFormat, Slice, slices_of_row
from pipeline.samples.shuffle import StoreOrder
from pipeline.samples.text import sentence_positions, write_rows
from tests.conftest import commit_tokens

BOS, PAD, EOS = 0, 1, 2
FIRST_ORDINARY = 5

DOCUMENTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=1, max_size=25)
"""Documents as the lengths of their sentences."""
LENGTHS = st.integers(5, 24)
"""Positions of a row: some sentences and most documents are longer."""

ANY_TOKENIZER = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str().encode()
"""A tokenizer.json for stores whose text nobody reads."""


@dataclass
class Corpus:
    """Documents as the lengths of their sentences, in two files."""

    sentences: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        self.lengths = np.array([sum(each) for each in self.sentences], dtype=np.int32)
        self.first_ids = FIRST_ORDINARY + np.cumsum(self.lengths) - self.lengths
        self.num_tokens = int(self.lengths.sum())
        self.starts = [np.cumsum([0, *each])[:-1].astype(np.int32) for each in self.sentences]

    def ids(self, document: int, start: int = 0, stop: int | None = None) -> list[int]:
        """Token ids of a stretch of a document."""
        first = int(self.first_ids[document])
        return list(range(first + start, first + (int(self.lengths[document]) if stop is None else stop)))

    def owner(self, token: int) -> int:
        """The document of a token."""
        return int(np.searchsorted(self.first_ids, token, side="right")) - 1

    @property
    def sentence_ends(self) -> set[int]:
        """The last token of every sentence."""
        return {
            self.ids(document)[0] + int(end) - 1
            for document, each in enumerate(self.sentences)
            for end in np.cumsum(each)
        }

    @cached_property
    def in_store(self) -> TokenArrays:
        """The documents as a token store has them, with something else before the first."""
        ids = np.concatenate([[9], FIRST_ORDINARY + np.arange(self.num_tokens)]).astype(np.uint16)
        words = np.concatenate([[9], *self.starts]).astype(np.int32)
        ids.flags.writeable = words.flags.writeable = False
        counts = np.array([len(each) for each in self.sentences], dtype=np.int32)
        return TokenArrays(
            ids=ids,
            words=words,
            token_starts=1 + np.cumsum(self.lengths) - self.lengths,
            lengths=self.lengths,
            sentence_starts=1 + np.cumsum(counts) - counts,
            sentence_counts=counts,
        )

    def material(self, length: int, *, seed: int = 0, relation: Relation | None = None) -> FormatInput:
        """All documents, to be cut into rows."""
        order = StoreOrder("fingerprint", seed)
        documents = np.arange(len(self.sentences), dtype=np.int32)
        name = "the test documents"
        return FormatInput(self.lengths, lambda: self.in_store, documents, length, order, name, relation)


@dataclass
class Row:
    """One row as it was written."""

    ids: list[int]
    pieces: list[Slice]
    begins: list[int]
    """Columns at which pieces begin, the padding's among them."""
    segments: list[int]
    sentences: list[int]
    """Columns at which sentences begin."""
    label: int | None

    @property
    def tokens(self) -> list[int]:
        """The ids without special tokens."""
        return [token for token in self.ids if token >= FIRST_ORDINARY]

    @property
    def stretches(self) -> list[list[int]]:
        """The ids of every piece."""
        return [self.ids[a:b] for a, b in itertools.pairwise([*self.begins, len(self.ids)])]


def read_rows(cut: RowFormat, material: FormatInput, epoch: int = 0) -> list[Row]:
    """Every row of an epoch, one at a time."""
    found = cut.epoch(epoch)
    place = np.array([0])
    rows = []
    for number in range(cut.num_rows):
        ids = np.full((1, material.length), 60_000)
        slices, labels = found.slices_of(np.array([number])), found.pair_labels
        segments = np.zeros((0, 0) if labels is None else (1, material.length), dtype=np.uint8)
        text = material.text.of(slices.documents)
        first_ids = text.token_starts + slices.starts
        begins = write_rows(text.ids, first_ids, slices, place, (BOS, EOS, PAD), ids, segments)[:-1]
        sentences = sentence_positions(text, slices, place, material.length)
        label = None if labels is None else int(labels[number])
        rows.append(
            Row(
                ids[0].tolist(),
                slices_of_row(slices),
                begins.tolist(),
                segments.reshape(-1).tolist(),
                sentences.tolist(),
                label,
            )
        )
    return rows


CORPUS = Corpus([[2 + (d + 3 * s) % 9 for s in range(1 + d % 7)] for d in range(240)])
"""Documents of every number of sentences, enough for a few rows of each format."""


def write_corpus(path: Path, corpus: Corpus, langs: Sequence[str]) -> Path:
    """Commit the documents, document `i` in language `langs[i]`, as a token store of two files."""
    shards = []
    middle = len(corpus.sentences) // 2
    for own in (range(middle), range(middle, len(corpus.sentences))):
        batch = EncodedBatch(
            doc_ids=pa.array([f"test:{document}" for document in own]),
            langs=pa.array([langs[document] for document in own]),
            input_ids=Ragged.of([np.array(corpus.ids(document), dtype=np.uint32) for document in own]),
            sentence_starts=Ragged.of([corpus.starts[document] for document in own]),
        )
        shards.append(("test", batch))
    special = {"bos": BOS, "pad": PAD, "eos": EOS, "unk": 3, "mask": 4}
    vocab_size = FIRST_ORDINARY + corpus.num_tokens
    return commit_tokens(path, shards, ANY_TOKENIZER.decode(), vocab_size, special, sorted(set(langs)))


def open_samples(
    shares: Sequence[StoreShare], *, cache: IndexCache | None = None, **options: Any
) -> TokenDataset:
    """Samples of these stores, with the settings that most tests share."""
    options = {"sequence_length": 24, "seed": 1, "held_out": 0.1, "format": "contiguous"} | options
    if options["format"] in PAIR_FORMATS:
        options = {"relation": "nsp"} | options
    return TokenDataset(shares, Sampling(**options), cache=cache)


def same(ours: Packed, theirs: Packed) -> bool:
    """Whether two micro-batches have the same arrays, to the last bit."""

    def flat(packed: Packed) -> list[Any]:
        return [getattr(packed, name) for name in Packed.__slots__]

    return all(
        a is b if a is None or b is None else a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(flat(ours), flat(theirs), strict=True)
    )
