"""The lines that filters look at more closely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_prep.filters.phrases import LineScreen

PIECES = st.sampled_from(
    ["a", "B", "ab", "İ", "K", "Σ", "ς", "σ", "i̇", "\n", " ", "\x0b", "/", "漢", "\U00020000"]
)


@given(
    st.lists(PIECES, max_size=20).map("".join),
    st.lists(st.lists(PIECES, max_size=4).map(lambda own: "".join(own).lower()), max_size=4),
    st.integers(0, 3),
)
def test_every_line_that_holds_a_phrase_or_enough_characters_is_found(
    text: str, phrases: list[str], least: int
):
    found = LineScreen(phrases, "/漢", least).lines(text)
    for number, line in enumerate(text.split("\n")):
        has_phrase = bool(line) and any(phrase in line.lower() for phrase in phrases if "\n" not in phrase)
        has_enough = least > 0 and line.count("/") + line.count("漢") >= least
        assert number in found or not (has_phrase or has_enough)
    assert found == sorted(set(found))


def test_lines_that_hold_neither_are_not_found():
    screen = LineScreen(["terms of use", "use cookies"], "|/", 2)
    assert screen.lines("Terms of\nuse cookie\n|\nÄ /\n漢字 uses of terms") == []
    assert screen.lines("x\nWe USE COOKIES.\n\n| a /\nthe Terms of Use") == [1, 3, 4]
