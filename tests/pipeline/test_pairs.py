"""Pairs of segments: half of them wrong, text seen once, chunks and truncation as in BERT's released process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError
from pipeline.samples.formats.pair_chunks import removed_from_each, removed_in_front, segment_chunks
from pipeline.samples.formats.pairs import segment_pair, sentence_pair
from pipeline.samples.noise import Noise
from pipeline.samples.packed import EpochRows
from tests.pipeline.materials import BOS, DOCUMENTS, EOS, LENGTHS, PAD, Corpus, Row, read_rows

FORMATS = {"segment_pair": segment_pair, "sentence_pair": sentence_pair}
every_format = pytest.mark.parametrize("name", FORMATS)
every_relation = pytest.mark.parametrize("relation", ["nsp", "sop"])

MANY = Corpus([[3 + (d + s) % 7 for s in range(1 + d % 9)] for d in range(300)])
"""Documents of 1 to 9 sentences."""


def pairs_of(corpus: Corpus, name: str, relation, length: int, epoch: int = 0) -> list[Row]:
    material = corpus.material(length, seed=0, relation=relation)
    return read_rows(FORMATS[name](material), material, epoch)


def sizes_of(rows: EpochRows) -> np.ndarray:
    """[pairs, 2]: tokens of both segments of every pair."""
    slices = rows.slices_of(np.arange(len(rows.offsets) - 1))
    return (slices.stops - slices.starts).reshape(-1, 2)


def can_be_random(documents) -> bool:
    return len(documents) > 1 and any(len(own) > 1 for own in documents)


def test_lengths_of_segments_do_not_tell_the_order_of_sentences():
    """Pairs of about 20 sentences, some of which are four times as long as the others."""
    draws = np.random.default_rng(3)
    corpus = Corpus([draws.choice([4, 16], int(draws.integers(30, 90))).tolist() for _ in range(3000)])
    rows = segment_pair(corpus.material(200, relation="sop")).epoch(0)
    sizes, labels = sizes_of(rows), rows.pair_labels
    longer = sizes[:, 1] - sizes[:, 0]
    in_order, swapped = np.sort(longer[labels == 0]), longer[labels == 1]
    below, up_to = (np.searchsorted(in_order, swapped, side).mean() for side in ("left", "right"))
    assert (below + up_to) / 2 / len(in_order) == pytest.approx(0.5, abs=0.015)


def test_the_same_chunk_is_right_in_one_epoch_and_wrong_in_another():
    labels: dict[tuple[int, int], set[int]] = {}
    for epoch in range(8):
        for row in pairs_of(MANY, "sentence_pair", "nsp", 64, epoch):
            a = row.pieces[0]
            if len(MANY.sentences[a.document]) > a.start + 1:
                labels.setdefault((a.document, a.start), set()).add(row.label or 0)
    assert np.mean([len(seen) == 2 for seen in labels.values()]) > 0.9


def test_random_segments_come_from_everywhere():
    partners = {
        (row.pieces[0].document, row.pieces[1].document)
        for epoch in range(4)
        for row in pairs_of(MANY, "segment_pair", "nsp", 32, epoch)
        if row.label == 1
    }
    distances = np.array([(b - a) % 300 for a, b in partners])
    assert len(partners) > 300
    assert np.histogram(distances, bins=4, range=(0, 300))[0] == pytest.approx(len(partners) / 4, rel=0.2)


@every_format
@pytest.mark.parametrize("most", [2, 5, 40])
def test_half_of_the_pairs_of_every_length_are_random(name: str, most: int):
    """Short documents end in a sentence that is alone, and pairs of those are random: they must not show."""
    generator = np.random.Generator(np.random.Philox(most))
    corpus = Corpus(
        [generator.integers(3, 26, size).tolist() for size in generator.integers(1, most + 1, 6000 // most)]
    )
    cut = FORMATS[name](corpus.material(64, relation="nsp"))
    epochs = [cut.epoch(epoch) for epoch in range(2)]
    labels = np.array([rows.pair_labels for rows in epochs]).ravel()
    found = np.concatenate([sizes_of(rows) for rows in epochs])
    assert abs(labels.mean() - 0.5) < 0.001
    # Three deviations of a coin that is tossed for a tenth of the pairs.
    tolerance = 1.5 / (len(labels) / 10) ** 0.5
    for size in (found.sum(axis=1), found[:, 0], found[:, 1]):
        order = np.lexsort((generator.random(len(size)), size))
        shares = [labels[part].mean() for part in np.array_split(order, 10)]
        assert min(shares) > 0.5 - tolerance
        assert max(shares) < 0.5 + tolerance


@given(documents=DOCUMENTS, length=LENGTHS, seed=st.integers(0, 5))
def test_chunks_are_those_of_the_released_loop(documents, length: int, seed: int):
    noise = Noise.of("test", seed)

    def target_length(document: int, first: int) -> int:
        here = noise.at(document, first)
        if here.at(0).uniform() < 0.1:
            return 2 + int(here.at(1).integers(length - 3 - 1))
        return length - 3

    expected = []
    for document, sizes in enumerate(documents):
        first, total = 0, 0
        for i, size in enumerate(sizes):
            total += size
            long_enough = i > first and total >= target_length(document, first)
            if i == len(sizes) - 1 or long_enough:
                expected.append((document, first, i + 1 - first))
                first, total = i + 1, 0
    text = Corpus(documents).in_store
    chunks = segment_chunks(text, np.arange(len(documents)), length, np.uint64(noise.state), either_way=False)
    counted = (chunks.documents, chunks.starts, chunks.stops - chunks.starts)
    assert list(zip(*(each.tolist() for each in counted), strict=True)) == expected


def test_chunks_of_a_document_may_share_their_target_as_in_the_released_code():
    corpus = Corpus([[1] * 1_000] * 300)
    chunks = segment_chunks(
        corpus.in_store, np.arange(300), 67, np.uint64(7), either_way=False, shared_targets=True
    )
    counts = chunks.stops - chunks.starts
    inside = chunks.stops < 1_000
    targets = [np.unique(counts[inside & (chunks.documents == number)]).tolist() for number in range(300)]
    assert all(len(own) == 1 for own in targets)
    assert np.mean([own[0] < 64 for own in targets]) == pytest.approx(0.1, abs=0.05)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(2, 300), st.integers(0, 2**63))
def test_truncation_ends_where_the_released_process_does(first: int, second: int, longest: int, seed: int):
    states = [np.uint64(seed), np.uint64(seed + 1)]
    segments, tossed = [list(range(first)), list(range(second))], [0, 0]
    while len(segments[0]) + len(segments[1]) > longest:
        which = 0 if len(segments[0]) > len(segments[1]) else 1
        word, bit = divmod(tossed[which], 64)
        tossed[which] += 1
        heads = (int(Noise(np.asarray(states[which])).at(word).bits()) >> bit) & 1
        segments[which].pop(0 if heads else -1)
    sizes, removed = (first, second), removed_from_each(first, second, longest)
    for segment, size, lost, state in zip(segments, sizes, removed, states, strict=True):
        front = removed_in_front(lost, state)
        assert list(range(front, size - (lost - front))) == segment


def test_natural_sentences_are_paired_whole_or_fill_the_row_and_lose_tokens_on_both_ends():
    for row in pairs_of(MANY, "sentence_pair", "nsp", 64):
        for piece in row.pieces:
            bounds = [*MANY.starts[piece.document].tolist(), int(MANY.lengths[piece.document])]
            assert bounds.index(piece.stop) == bounds.index(piece.start) + 1
    corpus = Corpus([[40, 50, 45, 60]] * 50)
    fronts, backs = 0, 0
    for row in pairs_of(corpus, "sentence_pair", "nsp", 48):
        assert PAD not in row.ids
        for piece in row.pieces:
            starts = corpus.starts[piece.document]
            sentence = int(np.searchsorted(starts, piece.start, side="right")) - 1
            fronts += piece.start - int(starts[sentence])
            backs += int([*starts, corpus.lengths[piece.document]][sentence + 1]) - piece.stop
    assert fronts / (fronts + backs) == pytest.approx(0.5, abs=0.03)


@every_format
@every_relation
@given(documents=DOCUMENTS, length=LENGTHS, epoch=st.integers(0, 2))
def test_a_row_is_one_pair_as_its_label_says_and_padding(
    name: str, relation, documents, length: int, epoch: int
):
    assume(can_be_random(documents))
    corpus = Corpus(documents)
    rows = pairs_of(corpus, name, relation, length, epoch)
    assert rows
    assert sum(row.label == 1 for row in rows) == len(rows) // 2
    for row in rows:
        a, b = row.pieces
        tokens_a, tokens_b = (corpus.ids(each.document, each.start, each.stop) for each in (a, b))
        assert tokens_a
        assert tokens_b
        pair = [BOS, *tokens_a, EOS, *tokens_b, EOS]
        padding = length - len(pair)
        assert row.ids == [*pair, *[PAD] * padding]
        assert row.begins == ([0, len(pair)] if padding else [0])
        assert row.segments == [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1) + [0] * padding
        assert row.ids[b.row_start : b.row_stop] == [*tokens_b, EOS]
        assert (a.document != b.document) == (relation == "nsp" and row.label == 1)
        if a.document == b.document:
            assert (a.stop <= b.start) != (relation == "sop" and row.label == 1)


@every_format
@every_relation
@pytest.mark.parametrize("epoch", range(3))
def test_text_is_seen_once_an_epoch_where_nothing_is_cut_off_but_sentences_without_a_partner(
    name: str, relation, epoch: int
):
    seen = [token for row in pairs_of(MANY, name, relation, 150, epoch) for token in row.tokens]
    assert len(set(seen)) == len(seen)
    # One chunk of a single sentence may find no partner; with sentence order, none of them has one.
    if relation == "nsp":
        assert MANY.num_tokens - len(seen) <= max(max(own) for own in MANY.sentences)
        return
    for document, own in enumerate(MANY.sentences):
        starts = MANY.starts[document].tolist()
        alone = starts[-1:] if len(own) % 2 == 1 or name == "segment_pair" else []
        # Half of the documents are cut from their end on, and begin with what is left.
        alone += starts[:1] if name == "segment_pair" else []
        for start, size in zip(starts, own, strict=True):
            assert start in alone or set(MANY.ids(document, start, start + size)) <= set(seen)


@pytest.mark.parametrize(
    ("corpus", "name", "relation", "length"),
    [
        (Corpus([[3, 4, 5]]), "segment_pair", "nsp", 16),
        (Corpus([[3], [4]]), "sentence_pair", "sop", 16),
        (MANY, "segment_pair", "nsp", 4),
    ],
    ids=["random segments of one document", "an order without two sentences", "no place for two segments"],
)
def test_pairs_that_cannot_be_are_refused(corpus: Corpus, name: str, relation, length: int):
    with pytest.raises(ConfigError):
        pairs_of(corpus, name, relation, length)
    assert pairs_of(Corpus([[3, 4, 5]]), "segment_pair", "sop", 16), "one document is enough for an order"
