"""Gopher's quality rules at their limits."""

from __future__ import annotations

import pytest

FIFTY = "the of " + "stone " * 48
"""Fifty words, two of them stop words."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FIFTY, None),
        (FIFTY.replace("stone ", "", 1), "few_words"),
        ("the of " + "stone " * 99_998, None),
        ("the of " + "stone " * 99_999, "many_words"),
        ("the of " + "xy " * 48, "short_words"),
        ("the with " + "bbb " * 48, None),
        ("the of " + "x" * 10 + " " + "abcdefghij " * 48, None),
        ("the of " + "abcdefghijk " * 60, "long_words"),
        (FIFTY + "#" * 5, None),
        (FIFTY + "#" * 6, "many_hashes"),
        (FIFTY + "... " * 2 + "… " * 3 + "stone", None),
        (FIFTY + "... " * 3 + "… " * 3, "many_ellipses"),
        (FIFTY + "word\n" + "- stone\n" * 9, None),
        (FIFTY + "word\n" + "• stone\n" * 10, "bullet_lines"),
        (FIFTY * 2 + "\n" + "stone\n" * 6 + "stone...\n" * 3, None),
        (FIFTY * 2 + "\n" + "stone\n" * 5 + "stone…\n" * 3, "ellipsis_lines"),
        (FIFTY * 2 + "2024 " * 25, None),
        (FIFTY * 2 + "2024 " * 26, "few_words_with_letters"),
        (FIFTY * 2 + "| " * 26, "few_words_with_letters"),
        (FIFTY.replace("of", "off"), "few_stop_words"),
        (FIFTY.replace("of", "The"), "few_stop_words"),
    ],
)
def test_limits_of_the_appendix(bench, text: str, reason: str | None):
    assert bench("gopher_quality").reason(text) == reason


def test_other_languages_bring_their_stop_words(bench):
    german = "Der Hund und die Katze lagen in der Sonne vor dem Haus. " * 6
    assert bench("gopher_quality").reason(german) == "few_stop_words"
    assert bench("gopher_quality", stop_words=["der", "die", "und"]).reason(german) is None


def test_chinese_passes_when_the_length_of_words_is_no_criterion(bench):
    chinese = "他们在河边的小村庄里住了很多年。" * 6
    assert bench("gopher_quality").reason(chinese) == "short_words"
    assert bench("gopher_quality", min_mean_word_length=0, min_stop_words=0).reason(chinese) is None
