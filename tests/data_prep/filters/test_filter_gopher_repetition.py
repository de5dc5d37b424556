"""Gopher's repetition rules, on examples counted by hand and against counting by brute force."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.filters.gopher_repetition import GopherRepetitionConfig, _shares, duplicates
from data_prep.text.word_kernel import number_words, repeated_characters
from data_prep.text.words import word_spans


def shares(text: str) -> dict[str, float]:
    return {name: share for name, share, _ in _shares(text, GopherRepetitionConfig())}


def test_defaults_are_table_a1():
    limits = {name: most for name, _, most in _shares("", GopherRepetitionConfig())}
    assert limits == {
        "duplicate_lines": 0.30,
        "duplicate_line_characters": 0.20,
        "duplicate_paragraphs": 0.30,
        "duplicate_paragraph_characters": 0.20,
        "top_2_gram": 0.20,
        "top_3_gram": 0.18,
        "top_4_gram": 0.16,
        "duplicate_5_grams": 0.15,
        "duplicate_6_grams": 0.14,
        "duplicate_7_grams": 0.13,
        "duplicate_8_grams": 0.12,
        "duplicate_9_grams": 0.11,
        "duplicate_10_grams": 0.10,
    }


def test_second_and_later_lines_are_duplicates():
    assert duplicates(["aa", "b", "aa", "aa", "ccc"]) == (2 / 5, 4)


def test_paragraphs_lie_between_blank_lines():
    found = shares("one two\nthree\n\n  \nfour\n\none two\nthree")
    assert found["duplicate_paragraphs"] == 1 / 3
    assert found["duplicate_paragraph_characters"] == pytest.approx(13 / 28)
    assert found["duplicate_lines"] == 2 / 5


def test_top_ngram_is_counted_in_the_characters_of_its_words():
    # "red fox" three times, and `Red fox` is another: 18 of 31 characters of words.
    assert shares("Red fox, red fox; the red fox! (red fox) runs.")["top_2_gram"] == 18 / 31


def test_overlapping_occurrences_of_the_top_ngram_count_once():
    assert shares("la la la la la")["top_2_gram"] == 1.0


def test_ngram_that_occurs_once_is_no_repetition():
    assert shares("only two words here")["top_2_gram"] == 0


def test_repeated_passage_counts_from_its_second_occurrence_with_overlaps_once():
    passage = "aa bb cc dd ee ff gg"
    found = shares(f"{passage} xx {passage} yyyy")
    # Three 5-grams of the second passage overlap in its 14 characters; 34 are in all words.
    assert found["duplicate_5_grams"] == 14 / 34
    assert found["duplicate_7_grams"] == 14 / 34
    assert found["duplicate_8_grams"] == 0


@pytest.mark.parametrize("sentence", ["Buy now and save more money today. ", "坐火车去北京旅行很方便。"])
def test_page_that_says_one_thing_again_and_again_is_dropped(bench, sentence: str):
    assert bench("gopher_repetition").reason(sentence * 30) is not None


def test_limit_itself_is_allowed(bench):
    lines = "\n".join(
        ["same line here"] * 4 + [f"{n} other {n} words {n} on {n} this {n} line" for n in range(6)]
    )
    off = {"top_ngram_characters": {}, "duplicate_ngram_characters": {}, "duplicate_line_characters": 1}
    off["duplicate_paragraph_characters"] = 1
    assert bench("gopher_repetition", duplicate_lines=0.3, **off).reason(lines) is None
    assert bench("gopher_repetition", duplicate_lines=0.29, **off).reason(lines) == "duplicate_lines"


@pytest.mark.parametrize("limits", [{1: 0.5}, {65: 0.5}, {3: 1.5}])
def test_limits_without_sense_are_refused(bench, limits: dict[int, float]):
    with pytest.raises(ValueError, match="n must be 2 to 64"):
        bench("gopher_repetition", top_ngram_characters=limits)


@given(st.lists(st.sampled_from(["a", "b", "cc", "漢", "A", "e\u0301"]), max_size=40))
def test_characters_in_repeated_ngrams_are_those_that_brute_force_finds(words: list[str]):
    found = word_spans(" ".join(words))
    numbers = np.empty(len(found), np.int64)
    number_words(found.points, found.places, found.ends, numbers)
    assert numbers.tolist() == [list(dict.fromkeys(words)).index(word) for word in words]
    top, repeated = np.zeros((2, 9), np.int64)
    size = repeated_characters(found.points, found.places, found.ends, top, repeated)
    assert size == sum(map(len, words))
    for n in range(2, 9):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        counts = Counter(grams)
        later = [i for i, gram in enumerate(grams) if gram in grams[:i]]
        assert repeated[n] == characters_inside(words, later, n)
        # The most frequent, of those the longest, of those the first.
        best = max(grams, key=lambda gram: (counts[gram], sum(map(len, gram))), default=())
        is_repetition = counts[best] > 1
        places = [i for i, gram in enumerate(grams) if gram == best and is_repetition]
        assert top[n] == characters_inside(words, places, n)


def characters_inside(words: list[str], starts: list[int], n: int) -> int:
    return sum(len(words[i]) for i in {i for start in starts for i in range(start, start + n)})
