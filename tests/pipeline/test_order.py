"""The order of samples is a pure function of counter-based randomness; rows hold every token once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.samples.formats import FORMATS, SINGLE_FORMATS
from pipeline.samples.formats.packing import best_fit_decreasing
from pipeline.samples.mixture import Mixture
from pipeline.samples.noise import Noise, fold, integer, uniform
from pipeline.samples.shuffle import StoreOrder, sorted_by_draw
from tests.pipeline.materials import BOS, DOCUMENTS, EOS, FIRST_ORDINARY, LENGTHS, PAD, Corpus, read_rows


def test_draws_are_uniform_and_those_of_neighbouring_keys_uncorrelated():
    draws = Noise.of("uniform").at(*np.ogrid[:450, :450]).uniform()
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-3
    assert draws.min() >= 0
    assert draws.max() < 1
    for one, other in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


@given(st.integers(0, 500), st.integers(0, 2**63 - 1))
def test_a_permutation_holds_every_index_once(size: int, seed: int):
    assert sorted(Noise.of(seed).permutation(size).tolist()) == list(range(size))


WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 2**32 - 1))
def test_compiled_draws_equal_those_of_noise(seed: int, keys: list[int], high: int):
    noise = Noise.of("test", seed)
    state = np.uint64(noise.state)
    for key in keys:
        noise = noise.at(key)
        state = np.uint64(fold(state, np.uint64(key)))
    assert state == noise.bits()
    assert uniform(state) == noise.uniform()
    assert integer(state, high) == noise.integers(high)


def of_every_size(counts: st.SearchStrategy[int]) -> st.SearchStrategy[list[float]]:
    """Weights of 1 to 3,000 parts, equal or of very different sizes, some of them 0."""

    def weights(count: int, spread: float, seed: int) -> list[float]:
        drawn = np.random.default_rng(seed).uniform(-spread, 0, count)
        return [*np.where(drawn < -20, 0.0, np.exp(drawn)).tolist()[:-1], 1.0]

    return st.builds(weights, counts, st.sampled_from([0.0, 1.0, 10.0, 30.0]), st.integers(0, 1000))


@given(of_every_size(st.integers(1, 3000)), st.integers(0, 100), st.integers(0, 2**40), st.integers(1, 3000))
def test_parts_give_their_own_samples_without_gap_and_by_weight_from_any_sample_on(
    weights: list[float], seed: int, first: int, count: int
):
    mixture = Mixture(weights, seed)
    samples = np.arange(first, first + count)
    parts, numbers = mixture.locate(samples)
    share = np.array(weights) / sum(weights)
    for part in np.unique(parts).tolist():
        own = numbers[parts == part]
        assert (np.diff(own) == 1).all()
        assert (mixture.samples_of(part, own) == samples[parts == part]).all()
        # Half a sample for each level of the tree, and the rounding of a share to 52 bits.
        assert np.abs(own - samples[parts == part] * share[part]).max() <= 1 + len(weights).bit_length() / 2
    assert share[np.unique(parts)].all()


def test_order_depends_on_fingerprint_seed_and_epoch_and_not_on_documents_left_out():
    everything, half = np.arange(300), np.arange(0, 300, 2)
    orders = [
        StoreOrder(fingerprint, seed).documents(epoch, everything)
        for fingerprint, seed, epoch in (("a", 1, 4), ("a", 1, 4), ("b", 1, 4), ("a", 2, 4), ("a", 1, 5))
    ]
    assert all(sorted(each) == list(range(300)) for each in orders)
    assert [(each != orders[0]).mean() > 0.9 for each in orders] == [False, False, True, True, True]
    assert [d for d in orders[0] if d % 2 == 0] == StoreOrder("a", 1).documents(4, half).tolist()
    first, second = (StoreOrder("a", 1).rows(epoch, 500) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(500))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 127, 128, 129, 5_000, 131_071, 131_072, 300_000])
def test_numbers_come_in_the_order_of_a_stable_sort_of_their_draws(count: int, dtype: type[np.signedinteger]):
    # Every number stands there twice, so that draws are equal.
    numbers = np.arange(count, dtype=dtype) // dtype(2)
    before, memory = numbers.copy(), np.empty((2, count), dtype)
    for seed in range(3):
        noise = Noise.of("test", seed)
        expected = numbers[np.argsort(noise.at(numbers).bits(), kind="stable")]
        found = sorted_by_draw(np.uint64(noise.state), numbers)
        sorted_by_draw(np.uint64(noise.state), numbers, memory)
        assert found.dtype == dtype
        for own, other in ((numbers, before), (found, expected), (memory[1], expected)):
            assert np.array_equal(own, other)


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
