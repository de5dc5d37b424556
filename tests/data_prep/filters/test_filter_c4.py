"""C4's rules for lines and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.artefacts.errors import MissingInputError
from data_prep.filters.c4 import without_citations

GOOD = "One sentence stands here alone.\nDoes another one stand here?\nA third one makes it enough!"


@pytest.mark.parametrize(
    "line",
    [
        "a line without an end mark",
        "a line that trails off...",
        "only four words here.",
        "Please enable JavaScript in your own browser.",
        "Read our Privacy Policy before you go on.",
        "this word is " + "x" * 1001 + " much too long.",
        "",
    ],
)
def test_line_that_is_no_prose_is_removed(bench, line: str):
    assert bench("c4").text(f"{line}\n{GOOD}") == GOOD


@pytest.mark.parametrize(
    "line",
    [
        "exactly five words are here.",
        *(f"he said quite enough of it{mark}" for mark in '"”’»“」'),
        "x" * 1000 + " is a long word.",
    ],
)
def test_line_at_the_limit_stays(bench, line: str):
    assert bench("c4").text(f"  {line} \n{GOOD}") == f"{line}\n{GOOD}"


def test_removed_lines_are_counted_without_blank_ones(bench):
    assert bench("c4").counts(f"menu\n\n{GOOD}\n\nfooter") == {"lines_removed": 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("One sentence stands here alone. Does another one stand here?", "few_sentences"),
        ("One sentence stands here alone. Does another one stand here? A third.", None),
        ("One sentence stands here alone.\nDoes another one stand here?", "few_sentences"),
        (f"{GOOD}\nfunction() {{", "dropped_phrase"),
        (f"Lorem Ipsum dolor\n{GOOD}", "dropped_phrase"),
    ],
)
def test_rules_for_pages(bench, text: str, reason: str | None):
    assert bench("c4").reason(text) == reason


def test_citations_are_taken_out_also_behind_the_full_stop(bench):
    text = (
        "The town has two old mills.[1] [2]\nIt was founded in 1200 [citation needed] by monks.\n"
        "Its name[edit] is very old indeed."
    )
    assert bench("c4").text(text) == (
        "The town has two old mills.\nIt was founded in 1200  by monks.\nIts name is very old indeed."
    )


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("a[1]b[]c", "abc"),
        ("[[1]2]", ""),
        ("[ci[3]tation needed]", ""),
        ("a[b]c", "a[b]c"),
        ("a[b[1]c", "a[bc"),
        ("]1[", "]1["),
        ("[x[12]", "[x"),
        ("[x][12]", "[x]"),
        ("a] [edit]", "a] "),
    ],
)
def test_brackets_in_brackets(line: str, left: str):
    assert without_citations(line) == left


def test_bad_words_drop_pages_that_hold_them_as_words(bench, tmp_path: Path):
    (tmp_path / "list.txt").write_text("Rotten\nvery bad thing\n坏话\n\n", encoding="utf-8")
    c4 = bench("c4", bad_words=tmp_path / "list.txt")
    assert c4.reason(GOOD) is None
    assert c4.reason(f"{GOOD} That is ROTTEN to the core.") == "bad_word"
    assert c4.reason(f"{GOOD} He spoke of a very bad\nthing.") == "bad_word"
    assert c4.reason(f"{GOOD} Forgotten things are very bad.") is None
    assert c4.reason(f"{GOOD} 他说坏话了.") == "bad_word"


def test_missing_list_is_named(bench, tmp_path: Path):
    with pytest.raises(MissingInputError, match=r"absent\.txt"):
        bench("c4", bad_words=tmp_path / "absent.txt")


def test_rules_can_be_switched_off(bench):
    off = bench(
        "c4",
        end_marks=[],
        min_words_per_line=0,
        min_sentences=0,
        remove_citations=False,
        removed_phrases=[],
        dropped_phrases=[],
    )
    text = "menu\njavascript { [1]\nlorem ipsum"
    assert off.text(text) == text
