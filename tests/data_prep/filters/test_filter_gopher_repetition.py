"""Gopher's repetition rules, on examples counted by hand and against counting by brute force."""

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.filters.gopher import GopherRepetitionConfig, number_words
from data_prep.text.word_kernel import ngram_characters

NO_LIMITS = {
    **dict.fromkeys(("duplicate_lines", "duplicate_line_characters"), 1),
    **dict.fromkeys(("duplicate_paragraphs", "duplicate_paragraph_characters"), 1),
    "top_ngram_characters": {},
    "duplicate_ngram_characters": {},
}
PASSAGE = "aa bb cc dd ee ff gg"
PARAGRAPHS = "one two\nthree\n\n  \nfour\n\none two\nthree"


@pytest.mark.parametrize(
    ("limit", "text", "share", "reason"),
    [
        ("duplicate_lines", "aa\nb\naa\naa\nccc", 2 / 5, "duplicate_lines"),
        ("duplicate_line_characters", "aa\nb\naa\naa\nccc", 4 / 10, "duplicate_line_characters"),
        ("duplicate_paragraphs", PARAGRAPHS, 1 / 3, "duplicate_paragraphs"),
        ("duplicate_paragraph_characters", PARAGRAPHS, 13 / 28, "duplicate_paragraph_characters"),
        # "red fox" three times, and `Red fox` is another: 18 of 31 characters of words.
        (2, "Red fox, red fox; the red fox! (red fox) runs.", 18 / 31, "top_2_gram"),
        # Overlapping occurrences count once.
        (2, "la la la la la b", 10 / 11, "top_2_gram"),
        # Three 5-grams of the second passage overlap in its 14 characters; 34 are in all words.
        (5, f"{PASSAGE} xx {PASSAGE} yyyy", 14 / 34, "duplicate_5_grams"),
        (7, f"{PASSAGE} xx {PASSAGE} yyyy", 14 / 34, "duplicate_7_grams"),
    ],
)
def test_share_is_counted_as_in_the_paper_and_the_limit_itself_is_allowed(bench, limit, text, share, reason):
    def dropped(most):
        name = "top_ngram_characters" if reason.startswith("top") else "duplicate_ngram_characters"
        wanted = {limit: most} if isinstance(limit, str) else {name: {limit: most}}
        return bench("gopher_repetition", **NO_LIMITS | wanted).reason(text)

    assert dropped(share) is None
    assert dropped(share - 1e-9) == reason


def test_defaults_are_table_a1():
    assert GopherRepetitionConfig().model_dump() == {
        "kind": "gopher_repetition",
        "duplicate_lines": 0.30,
        "duplicate_line_characters": 0.20,
        "duplicate_paragraphs": 0.30,
        "duplicate_paragraph_characters": 0.20,
        "top_ngram_characters": {2: 0.20, 3: 0.18, 4: 0.16},
        "duplicate_ngram_characters": {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10},
    }


def test_page_that_says_one_thing_again_and_again_is_dropped_and_one_that_repeats_nothing_is_not(bench):
    for sentence in ("Buy now and save more money today. ", "坐火车去北京旅行很方便。"):
        assert bench("gopher_repetition").reason(sentence * 30) is not None
    nothing = {"top_ngram_characters": {2: 0}, "duplicate_ngram_characters": {2: 0}}
    assert bench("gopher_repetition", **nothing).reason("only two words here") is None


@pytest.mark.parametrize("limits", [{1: 0.5}, {65: 0.5}, {3: 1.5}])
def test_limits_without_sense_are_refused(bench, limits):
    with pytest.raises(ValidationError):
        bench("gopher_repetition", top_ngram_characters=limits)


@given(st.lists(st.sampled_from(["a", "b", "cc", "漢", "A", "e\u0301"]), max_size=40))
def test_characters_in_repeated_ngrams_are_those_that_brute_force_finds(words):
    numbers, before = number_words(" ".join(words))
    assert len(set(numbers.tolist())) == len({*zip(numbers.tolist(), words, strict=True)}) == len({*words})
    assert before.tolist() == [0, *accumulate(map(len, words))]
    top, repeated = np.zeros((2, 9), np.int64)
    ngram_characters(numbers, before, top, repeated)

    def characters_inside(starts: list[int], n: int) -> int:
        return sum(len(words[i]) for i in {i for start in starts for i in range(start, start + n)})

    for n in range(2, 9):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        counts = Counter(grams)
        later = [i for i, gram in enumerate(grams) if gram in grams[:i]]
        assert repeated[n] == characters_inside(later, n)
        # The most frequent, of those the longest, of those the first.
        best = max(grams, key=lambda gram: (counts[gram], sum(map(len, gram))), default=())
        places = [i for i, gram in enumerate(grams) if gram == best and counts[best] > 1]
        assert top[n] == characters_inside(places, n)
