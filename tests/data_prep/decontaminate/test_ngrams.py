"""Searching texts for n-grams: everything that a plain loop finds, nothing else."""

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import StorageError
from cluster.artefacts.storage import storage_errors
from data_prep.decontaminate import ngrams
from data_prep.decontaminate.config import DecontaminationConfig
from data_prep.decontaminate.ngrams import NgramIndex, save_array
from data_prep.text.words import split_words
from pipeline.tasks.evaluation_sets import evaluation_texts
from tests.data_prep.decontaminate.oracle import ngrams_of, search, words_of

TWENTY = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst")


def found_in(documents, evaluation, ngram=13, min_words=8):
    """Per document the set that the oracle gives."""
    index = NgramIndex.build(evaluation, ngram, min_words)
    split = split_words(documents)
    found = index.find(split)
    results = [set() for _ in documents]
    columns = (
        split.text_of(found.words),
        found.ngrams,
        split.places[found.words],
        split.ends[found.words + found.counts - 1],
    )
    for document, ngram, start, end in zip(*(column.tolist() for column in columns), strict=True):
        texts = index.occurrences["text"][index.occurrences["ngram"] == ngram].tolist()
        results[document] |= {(text, start, end, index.spell(ngram)) for text in texts}
    return results


@given(
    st.lists(st.text(st.sampled_from("aB c'.\n世"), max_size=40), max_size=5),
    st.lists(st.text(st.sampled_from("Ab c-,\n世"), max_size=25), max_size=6),
    st.integers(2, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
)
@example([TWENTY[:60], TWENTY[60:], TWENTY.upper().replace(" ", ",\n - ")], [TWENTY, "x", TWENTY], (13, 8))
@example([TWENTY], ["too short"], (13, 8))
def test_search_finds_what_a_plain_loop_finds(documents, evaluation, sizes):
    expected = [search(document, evaluation, *sizes) for document in documents]
    assert found_in(documents, evaluation, *sizes) == expected


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not():
    words = TWENTY.split()
    thirteen, twelve = " ".join(words[4:17]), " ".join(words[4:16])
    hits, none = found_in([f"before {thirteen} after", f"before {twelve} after"], [TWENTY])
    assert hits == {(0, 7, 7 + len(thirteen), thirteen)}
    assert none == set()


def test_equal_hashes_of_different_words_are_no_hit(monkeypatch):
    monkeypatch.setattr(
        ngrams, "hash_runs", lambda sums, starts, ends, second=False: np.zeros(len(starts), np.uint64)
    )
    documents = ["w x y z", "a b c d", "c d e f a"]
    assert found_in(documents, ["a b c d"], 4, 2) == [set(), {(0, 0, 7, "a b c d")}, set()]


@pytest.mark.parametrize("texts", [[TWENTY, "a b c d e f g h i"], []])
def test_a_saved_index_is_the_same_and_has_the_same_bytes(tmp_path, texts):
    index = NgramIndex.build(texts, 13, 8)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        index.save(tmp_path / name)
    loaded = NgramIndex.load(tmp_path / "one", 8)
    for name in ("codes", "ngrams", "occurrences", "beginnings", "passes"):
        assert np.array_equal(getattr(loaded, name), getattr(index, name))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.corpora
def test_real_articles_hold_the_parts_of_squad_that_a_plain_loop_finds(corpora):
    config = DecontaminationConfig(tasks=("squad1",), data=corpora)
    evaluation = list(dict.fromkeys(text.text for text in evaluation_texts(config)))
    article_file = corpora / "wikipedia" / "extracted-en" / "wiki_01"
    articles = article_file.read_text(encoding="utf-8").split("</doc>")
    wanted = {ngram for text in evaluation for ngram in ngrams_of(text, 13, 8)}
    expected = set()
    for number, article in enumerate(articles):
        words = words_of(article)
        plain = [word for word, _, _ in words]
        for length in range(8, 14):
            for i in range(len(plain) - length + 1):
                if (ngram := tuple(plain[i : i + length])) in wanted:
                    expected.add((number, words[i][1], words[i + length - 1][2], " ".join(ngram)))
    found = found_in(articles, evaluation)
    assert {(number, *hit[1:]) for number, hits in enumerate(found) for hit in hits} == expected
    assert len(expected) > 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error():
    with pytest.raises(StorageError) as raised, storage_errors(Path("/dev/full")):
        save_array(Path("/dev/full"), np.zeros(1 << 20))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
