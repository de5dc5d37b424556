"""Packing: every token once, pieces that begin with <s>, boundaries that match."""

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.batches.packing import PackedEpoch, Special

SPECIAL = Special(bos=0, eos=2, pad=1)
FIRST_ORDINARY = 5


@dataclass
class Tokens:
    """Documents in memory; token ids are all different, so that a misplaced one shows."""

    documents: list[np.ndarray]

    @property
    def lengths(self) -> np.ndarray:
        return np.asarray([len(document) for document in self.documents], dtype=np.int64)

    def copy_tokens(self, document: int, start: int, out: np.ndarray) -> None:
        out[:] = self.documents[document][start : start + len(out)]


def make_tokens(lengths: list[int]) -> Tokens:
    ends = np.cumsum([0, *lengths]) + FIRST_ORDINARY
    return Tokens([np.arange(a, b, dtype=np.uint32) for a, b in itertools.pairwise(ends)])


corpora = st.lists(st.integers(1, 40), min_size=1, max_size=30)
row_lengths = st.integers(4, 24)


def rows_of(tokens: Tokens, length: int, order: np.ndarray | None = None):
    documents = np.arange(len(tokens.documents)) if order is None else order
    epoch = PackedEpoch(tokens, documents, length, SPECIAL)
    for row in range(epoch.num_rows):
        out = np.full(length, 99999, dtype=np.uint32)
        ends = epoch.write(row, out)
        yield epoch, row, out, ends


@settings(deadline=None)
@given(corpora, row_lengths)
def test_the_stream_of_documents_is_recovered_from_the_rows(lengths: list[int], length: int):
    tokens = make_tokens(lengths)
    rows = list(rows_of(tokens, length))
    content = [token for _, _, out, _ in rows for token in out.tolist() if token >= FIRST_ORDINARY]
    stream = [token for document in tokens.documents for token in document.tolist()]
    assert content == stream[: len(content)]
    # What is left over is less than a row.
    assert len(stream) - len(content) < length


@settings(deadline=None)
@given(corpora, row_lengths)
def test_every_piece_starts_with_bos_and_no_piece_holds_two_documents(lengths: list[int], length: int):
    tokens = make_tokens(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for _, _, out, ends in rows_of(tokens, length):
        starts = [0, *ends[:-1]]
        assert ends[-1] == length
        for start, end in zip(starts, ends, strict=True):
            piece = out[start:end]
            if piece.tolist() == [SPECIAL.pad]:
                assert end == length
                continue
            assert piece[0] == SPECIAL.bos
            assert (piece[1:] != SPECIAL.bos).all()
            ordinary = piece[piece >= FIRST_ORDINARY] - FIRST_ORDINARY
            assert len(set(owner[ordinary])) <= 1


@settings(deadline=None)
@given(corpora, row_lengths)
def test_a_document_is_closed_by_eos_where_it_ends_and_nowhere_else(lengths: list[int], length: int):
    tokens = make_tokens(lengths)
    last_tokens = {int(document[-1]) for document in tokens.documents}
    rows = np.concatenate([out for *_, out, _ in rows_of(tokens, length)] or [np.empty(0, np.uint32)])
    flat = [token for token in rows.tolist() if token not in (SPECIAL.bos, SPECIAL.pad)]
    for previous, token in itertools.pairwise(flat):
        if token == SPECIAL.eos:
            assert previous in last_tokens


@settings(deadline=None)
@given(corpora, row_lengths)
def test_pieces_name_the_tokens_that_are_written(lengths: list[int], length: int):
    tokens = make_tokens(lengths)
    for epoch, row, out, _ in rows_of(tokens, length):
        for piece in epoch.pieces(row):
            written = out[piece.row_start : piece.row_stop]
            assert (
                written[written >= FIRST_ORDINARY].tolist()
                == tokens.documents[piece.document][piece.start : piece.stop].tolist()
            )


def test_at_most_one_position_of_a_row_is_padding():
    tokens = make_tokens([7] * 100)
    for *_, out, _ in rows_of(tokens, 10):
        assert (out == SPECIAL.pad).sum() <= 1


def test_the_order_of_documents_decides_the_rows_but_not_their_number():
    tokens = make_tokens([3, 9, 4, 12, 5, 8, 7])
    forward = [out.tolist() for *_, out, _ in rows_of(tokens, 8)]
    backward = [out.tolist() for *_, out, _ in rows_of(tokens, 8, np.arange(7)[::-1])]
    assert len(forward) == len(backward)
    assert forward != backward
