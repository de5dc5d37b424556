"""How texts are cut into words and lines."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.words import ListedWords, letter_runs, lines, word_spans, words


def test_marks_belong_to_their_letters():
    assert words("हिन्दी भाषा") == ("हिन्दी", "भाषा")


def test_scripts_without_spaces_give_a_word_for_each_character_with_its_marks():
    assert words("日本語のtext 1984") == ("日", "本", "語", "の", "text", "1984")
    assert words("ที่นี่") == ("ที่", "นี่")
    assert words("한국어 문장") == ("한국어", "문장")


def test_words_are_as_they_are_written_with_what_is_invisible_in_them():
    assert words("Ein\u00adheit snake_case, caf&eacute; ＦＵＬＬ") == (
        "Ein\u00adheit",
        "snake",
        "case",
        "caf&eacute;",
        "ＦＵＬＬ",
    )


def test_lines_have_no_white_space_around_them_and_are_never_empty():
    assert lines(" one \n\n \t\ntwo\r\n") == ("one", "two")


@given(st.text(st.sampled_from("aZé漢ก١7_.-# \t\n\x1c\x85\xa0\u200b\u0301\U00020000\U000e0100"), max_size=60))
def test_runs_with_a_letter_are_those_that_an_expression_finds(text: str):
    assert letter_runs(text) == (len(text.split()), len(re.findall(r"[^\W\d_]\S*", text)))


@given(
    st.lists(st.sampled_from(["the", "The", "thé", "of", "漢", "x" * 40, "y" * 40]), max_size=12),
    st.lists(st.sampled_from(["the", "th", "of", "漢", "字", "x" * 40, "x" * 41, ""]), max_size=5),
    st.integers(0, 4),
)
def test_listed_words_are_counted_once_each_and_as_written(found: list[str], listed: list[str], enough: int):
    count = word_spans(" ".join(found)).count_listed(ListedWords.of(listed), enough)
    assert count == min(enough, len({*found} & {*listed}))
