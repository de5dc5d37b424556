"""Length limits, in characters and words, by language."""

from __future__ import annotations


def test_both_limits_are_allowed_lengths(bench):
    limits = bench("length", min_characters=3, max_characters=5)
    assert [limits.reason("x" * size) for size in (2, 3, 5, 6)] == ["too_short", None, None, "too_long"]


def test_words_are_counted_without_punctuation(bench):
    limits = bench("length", min_words=2, max_words=3)
    assert limits.reason("one - !") == "too_short"
    assert limits.reason("one two, three.") is None
    assert limits.reason("one two three four") == "too_long"


def test_characters_of_scripts_without_spaces_count_as_words(bench):
    assert bench("length", min_words=6, max_words=6).reason("我喜欢读书。ok") is None


def test_language_has_its_own_limits(bench):
    limits = bench("length", min_characters=10, languages={"zh": {"min_characters": 3}})
    assert limits.reason("我喜欢", "zh") is None
    assert limits.reason("I like", "en") == "too_short"
