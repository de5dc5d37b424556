"""Packing documents into rows: every token once, pieces that begin with <s>, boundaries that match."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.samples.formats import FORMATS, SINGLE_FORMATS
from pipeline.samples.formats.packing import best_fit_decreasing
from tests.pipeline.materials import BOS, DOCUMENTS, EOS, FIRST_ORDINARY, LENGTHS, PAD, Corpus, read_rows

COMPLETE = ("best_fit", "doc_sentences", "sentences")
"""Formats that leave no tail out."""
WHOLE_SENTENCES = ("full_sentences", "doc_sentences", "sentences")

every_format = pytest.mark.parametrize("name", SINGLE_FORMATS)


@every_format
def test_the_next_epoch_puts_other_text_side_by_side(name: str):
    material = Corpus([[1 + (7 * d) % 5] * (1 + d % 4) for d in range(200)]).material(16)
    cut = FORMATS[name](material)
    first, second = (read_rows(cut, material, epoch) for epoch in (0, 1))
    assert len({tuple(row.ids) for row in first} & {tuple(row.ids) for row in second}) < len(first) / 2


@pytest.mark.parametrize("name", WHOLE_SENTENCES)
@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 2))
def test_only_a_sentence_longer_than_a_row_is_cut(name: str, documents, length: int, epoch: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    # <s>, the sentence, and </s> where a document (or, among single sentences, any) ends.
    too_long = {
        token
        for document, own in enumerate(documents)
        for start, size in zip(corpus.starts[document], own, strict=True)
        if size + 2 > length
        for token in corpus.ids(document, int(start), int(start) + size)
    }
    for row in read_rows(FORMATS[name](material), material, epoch):
        for piece in row.pieces:
            if piece.stop > piece.start:
                last = corpus.ids(piece.document, piece.stop - 1, piece.stop)[0]
                assert last in corpus.sentence_ends | too_long


@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 2))
def test_contiguous_rows_are_stretches_of_the_stream(documents, length: int, epoch: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    order = material.order.documents(epoch, material.documents)
    stream = [token for document in order for token in (BOS, *corpus.ids(document), EOS)]
    cut = FORMATS["contiguous"](material)
    assert cut.num_rows == len(stream) // (length - 1)
    for number, row in enumerate(read_rows(cut, material, epoch)):
        stretch = stream[number * (length - 1) : (number + 1) * (length - 1)]
        assert row.ids == ([*stretch, PAD] if stretch[0] == BOS else [BOS, *stretch])


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 30))
def test_bins_are_those_of_best_fit_decreasing_step_by_step(widths: list[int], length: int):
    rows: list[list[int]] = []
    for width in sorted(widths, reverse=True):
        fitting = [row for row in rows if sum(row) + width <= length]
        if fitting:
            max(fitting, key=sum).append(width)
        else:
            rows.append([width])
    offsets, ranks = best_fit_decreasing(np.bincount(widths, minlength=length + 1).astype(np.int64))
    ranked = np.array(sorted(widths, reverse=True))
    found = [ranked[ranks[a:b]].tolist() for a, b in itertools.pairwise(offsets)]
    # Among rows that are equally full the choice is free, and does not change how full rows become.
    assert sorted(map(sum, found)) == sorted(map(sum, rows))
    assert sorted(ranks.tolist()) == list(range(len(widths)))


@every_format
@given(documents=DOCUMENTS, length=LENGTHS)
def test_every_epoch_is_the_same_text_in_pieces_of_one_document_in_another_order(
    name: str, documents, length: int
):
    corpus = Corpus(documents)
    material = corpus.material(length)
    cut = FORMATS[name](material)
    epochs = [read_rows(cut, material, epoch) for epoch in range(4)]
    again = read_rows(FORMATS[name](material), material, 3)
    assert [row.ids for row in again] == [row.ids for row in epochs[3]]
    first_of_sentence = {corpus.ids(d)[0] + int(s) for d, own in enumerate(corpus.starts) for s in own}
    for rows in epochs:
        assert len(rows) == cut.num_rows
        if name in COMPLETE:
            seen = sorted(token for row in rows for token in row.tokens)
            assert seen == list(range(FIRST_ORDINARY, FIRST_ORDINARY + corpus.num_tokens))
        for row in rows:
            stretches = row.stretches
            if stretches[-1][0] == PAD:
                assert set(stretches.pop()) == {PAD}
            for stretch, piece in zip(stretches, row.pieces, strict=True):
                body = stretch[1:-1] if stretch[-1] == EOS else stretch[1:]
                assert stretch[0] == BOS
                assert body == corpus.ids(piece.document, piece.start, piece.stop)
                assert row.ids[piece.row_start : piece.row_stop] == stretch
            assert row.sentences == [
                column
                for column, token in enumerate(row.ids)
                if token in first_of_sentence or (token >= FIRST_ORDINARY and column - 1 in row.begins)
            ]


@pytest.mark.parametrize("name", ["best_fit", "sentences"])
@given(documents=DOCUMENTS, length=LENGTHS)
def test_documents_or_single_sentences_that_fit_are_whole_pieces_with_both_special_tokens(
    name: str, documents, length: int
):
    corpus = Corpus(documents)
    material = corpus.material(length)
    found = [stretch for row in read_rows(FORMATS[name](material), material) for stretch in row.stretches]
    for document, own in enumerate(documents):
        starts, sizes = (corpus.starts[document].tolist(), own) if name == "sentences" else ([0], [sum(own)])
        for start, size in zip(starts, sizes, strict=True):
            assert size + 2 > length or [BOS, *corpus.ids(document, start, start + size), EOS] in found


@given(documents=DOCUMENTS, length=LENGTHS)
def test_full_sentences_fill_rows_until_the_next_sentence_does_not_fit(documents, length: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    rows = read_rows(FORMATS["full_sentences"](material), material)
    seen = sorted(token for row in rows for token in row.tokens)
    assert seen == list(range(FIRST_ORDINARY, FIRST_ORDINARY + corpus.num_tokens))
    for row, after in itertools.pairwise(rows):
        first = after.pieces[0]
        size = next(end for end in np.cumsum(documents[first.document]) if end > first.start) - first.start
        begins = first.start == 0
        assert length - row.ids.count(PAD) + size + begins + 1 > length
