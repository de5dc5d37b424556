"""Packing documents into rows: every token once, pieces that begin with <s>, boundaries that match."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.samples.formats.packing import best_fit, best_fit_decreasing, doc_sentences, sentences
from pipeline.samples.formats.stream import Contiguous, FullSentences
from tests.pipeline.materials import BOS, DOCUMENTS, EOS, FIRST_ORDINARY, LENGTHS, PAD, Corpus, read_rows

FORMATS = {
    "contiguous": Contiguous,
    "best_fit": best_fit,
    "full_sentences": FullSentences,
    "doc_sentences": doc_sentences,
    "sentences": sentences,
}
COMPLETE = ("best_fit", "doc_sentences", "sentences")
"""Formats that leave no tail out."""
WHOLE_SENTENCES = ("full_sentences", "doc_sentences", "sentences")

every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 3))
def test_a_piece_is_bos_and_a_stretch_of_one_document(name: str, documents, length: int, epoch: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    for row in read_rows(FORMATS[name](material), material, epoch):
        stretches = row.stretches
        if stretches[-1][0] == PAD:
            assert set(stretches.pop()) == {PAD}
        assert len(stretches) == len(row.pieces)
        for stretch, piece in zip(stretches, row.pieces, strict=True):
            body = stretch[1:-1] if stretch[-1] == EOS else stretch[1:]
            assert stretch[0] == BOS
            assert body == corpus.ids(piece.document, piece.start, piece.stop)
            assert row.ids[piece.row_start : piece.row_stop] == stretch


@pytest.mark.parametrize("name", COMPLETE)
@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 3))
def test_an_epoch_holds_every_token_once(name: str, documents, length: int, epoch: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    rows = read_rows(FORMATS[name](material), material, epoch)
    seen = sorted(token for row in rows for token in row.tokens)
    assert seen == list(range(FIRST_ORDINARY, FIRST_ORDINARY + corpus.num_tokens))


@every_format
@given(documents=DOCUMENTS, length=LENGTHS)
def test_every_epoch_has_as_many_rows_in_another_order(name: str, documents, length: int):
    material = Corpus(documents).material(length)
    cut = FORMATS[name](material)
    epochs = [read_rows(cut, material, epoch) for epoch in range(4)]
    assert {len(rows) for rows in epochs} == {cut.num_rows}
    again = read_rows(FORMATS[name](material), material, 3)
    assert [row.ids for row in again] == [row.ids for row in epochs[3]]


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


@given(documents=DOCUMENTS, length=LENGTHS)
def test_single_sentences_are_pieces_with_both_special_tokens(documents, length: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    found = [
        stretch
        for row in read_rows(sentences(material), material)
        for stretch in row.stretches
        if stretch[0] == BOS and stretch[-1] == EOS
    ]
    expected = [
        [BOS, *corpus.ids(document, start, start + size), EOS]
        for document, own in enumerate(documents)
        for start, size in zip(corpus.starts[document].tolist(), own, strict=True)
        if size + 2 <= length
    ]
    assert all(piece in found for piece in expected)


@given(documents=DOCUMENTS, length=LENGTHS)
def test_best_fit_cuts_no_document_that_fits(documents, length: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    whole = {
        piece.document
        for row in read_rows(best_fit(material), material)
        for piece in row.pieces
        if (piece.start, piece.stop) == (0, corpus.lengths[piece.document])
    }
    assert {document for document, size in enumerate(corpus.lengths) if size + 2 <= length} <= whole


@given(documents=DOCUMENTS, length=LENGTHS)
def test_full_sentences_fill_rows_until_the_next_sentence_does_not_fit(documents, length: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    cut = FullSentences(material)
    rows = read_rows(cut, material)
    seen = sorted(token for row in rows for token in row.tokens)
    assert seen == list(range(FIRST_ORDINARY, FIRST_ORDINARY + corpus.num_tokens))
    for row, after in itertools.pairwise(rows):
        used = len(row.ids) - row.ids.count(PAD)
        first = after.pieces[0]
        size = next(end for end in np.cumsum(documents[first.document]) if end > first.start) - first.start
        goes_on = first.start > 0
        assert used + size + (0 if goes_on else 1) + 1 > length


@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 2))
def test_contiguous_rows_are_stretches_of_the_stream(documents, length: int, epoch: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    order = material.order.documents(epoch, material.documents)
    stream = [token for document in order for token in (BOS, *corpus.ids(document), EOS)]
    cut = Contiguous(material)
    assert cut.num_rows == len(stream) // (length - 1)
    for number, row in enumerate(read_rows(cut, material, epoch)):
        stretch = stream[number * (length - 1) : (number + 1) * (length - 1)]
        assert row.ids == ([*stretch, PAD] if stretch[0] == BOS else [BOS, *stretch])


@every_format
@given(documents=DOCUMENTS, length=LENGTHS)
def test_sentence_positions_are_the_first_tokens_of_pieces_and_sentences(name: str, documents, length: int):
    corpus = Corpus(documents)
    material = corpus.material(length)
    first_of_sentence = {
        corpus.ids(d, int(s), int(s) + 1)[0] for d, own in enumerate(corpus.starts) for s in own
    }
    for row in read_rows(FORMATS[name](material), material):
        expected = [
            column
            for column, token in enumerate(row.ids)
            if token in first_of_sentence or (token >= FIRST_ORDINARY and column - 1 in row.begins)
        ]
        assert row.sentences == expected


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 30))
def test_bins_are_those_of_best_fit_decreasing_step_by_step(widths: list[int], length: int):
    rows: list[list[int]] = []
    for width in sorted(widths, reverse=True):
        fitting = [row for row in rows if sum(row) + width <= length]
        if fitting:
            max(fitting, key=sum).append(width)
        else:
            rows.append([width])
    bins = best_fit_decreasing(np.bincount(widths, minlength=length + 1).astype(np.int64))
    ranked = np.array(sorted(widths, reverse=True))
    found = [ranked[bins.ranks[a:b]].tolist() for a, b in itertools.pairwise(bins.offsets)]
    # Among rows that are equally full the choice is free, and does not change how full rows become.
    assert sorted(map(sum, found)) == sorted(map(sum, rows))
    assert sorted(bins.ranks.tolist()) == list(range(len(widths)))


def test_documents_of_natural_lengths_fill_their_rows():
    # Articles: lengths close to log-normal, median 300 tokens.
    normal = np.random.Generator(np.random.Philox(1)).standard_normal(20_000)
    corpus = Corpus([[int(size)] for size in np.clip(np.exp(5.7 + 0.9 * normal), 8, 20_000)])
    real = corpus.num_tokens + 2 * len(corpus.sentences)
    counts = _widths_of_best_fit(corpus.lengths, 512)
    rows = len(best_fit_decreasing(counts).offsets) - 1
    assert real / (rows * 512) > 0.99


def _widths_of_best_fit(lengths: np.ndarray, length: int) -> np.ndarray:
    full, rest = np.divmod(lengths + 1, length - 1)
    counts = np.bincount(rest[rest > 1] + 1, minlength=length + 1)
    counts[length] += full.sum()
    return counts.astype(np.int64)
