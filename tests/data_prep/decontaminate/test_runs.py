"""Hashes of runs of words."""

from data_prep.decontaminate.ngrams import hash_runs, prefix_sums
from data_prep.text.words import split_words


def test_equal_runs_have_equal_hashes_at_any_place_and_others_do_not():
    words = split_words(["x y one two three", "one two THREE z", "one twothree z"])
    sums = prefix_sums(words.codes)
    starts, ends = words.starts[[2, 5, 9]], words.starts[[5, 8, 11]]
    first, second, other = hash_runs(sums, starts, ends).tolist()
    assert first == second != other
