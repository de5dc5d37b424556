"""Hashed word n-grams, against sets of words in plain Python."""

import re
import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from data_prep.dedup import texts as blocks_module
from data_prep.dedup.texts import hash_words, shingle, text_blocks
from tests.pipeline.real_text import docstrings

WORDS = "the The café cafe\u0301 CAFE x1 x2 don't don t ab cab abc 日本 本 naïve, -- Ωmega \u0301"
TEXTS = st.lists(st.sampled_from(WORDS.split(" ")), max_size=12).map(" ".join)


def words_of(text):
    """Words in plain Python: folded, cut where something is neither letter nor digit, and around ideographs."""
    letters = [part for part in unicodedata.normalize("NFD", text) if unicodedata.category(part) != "Mn"]
    return re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff_]+", "".join(letters).lower())


def ngrams_of(text, ngram):
    """Runs of so many words, or all words where they are fewer."""
    words = words_of(text)
    runs = [tuple(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))]
    return runs if words else []


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(1, 6))
def test_ngrams_are_equal_when_their_words_are(texts, ngram):
    found = shingle(pa.array(texts, type=pa.string()), ngram)
    assert len(found) == len(texts)
    hash_of = {}
    for row, text in enumerate(texts):
        grams = ngrams_of(text, ngram)
        assert len(found[row]) == len(grams)
        for gram, value in zip(grams, found[row].tolist(), strict=True):
            assert hash_of.setdefault(gram, value) == value
    assert len(set(hash_of.values())) == len(hash_of)


def test_real_words_do_not_collide():
    # Without superscripts, which the hash takes for figures.
    text = unicodedata.normalize("NFKC", "\n".join(document.text for document in docstrings()))
    words = words_of(text)
    hashes = hash_words(pa.array([text]))[0]
    assert len(hashes) == len(words) > 20_000
    assert len(np.unique(hashes)) == len(set(words))
    assert len(np.unique(shingle(pa.array([text]), 3)[0])) == len(set(ngrams_of(text, 3)))


def test_slices_and_blocks_change_nothing(monkeypatch):
    texts = pa.array(["skipped", "one two three", "é" * 30, "", "日本語 の 文", "four five six seven"])[1:]
    whole = shingle(texts, 2)
    for block_bytes in (1, 10, 40, 10_000):
        monkeypatch.setattr(blocks_module, "BLOCK_BYTES", block_bytes)
        blocks = list(text_blocks(texts))
        sizes = [len(own) for _, own in blocks]
        assert [first for first, _ in blocks] == np.cumsum([0, *sizes[:-1]]).tolist()
        values = np.concatenate([shingle(own, 2).values for _, own in blocks])
        assert np.array_equal(values, whole.values)
