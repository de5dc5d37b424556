"""Lines around the text of a page."""

from __future__ import annotations

import pytest

PROSE = "The mill was built in 1832 and ground corn until the war, when it burnt down."


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("This site uses cookies to give you the best experience. OK", "notices"),
        ("Please enable JavaScript to view this page.", "notices"),
        ("Read more »", "commands"),
        ("Share on Facebook", "commands"),
        ("Skip to main content", "commands"),
        ("© 2019 Example Ltd.", "copyright"),
        ("Copyright (c) 2004-2012 by the editors", "copyright"),
        ("Home | News | Sports | Contact", "navigation"),
        ("Home > Products > Lamps", "navigation"),
        ("Home » News » 2016", "navigation"),
    ],
)
def test_line_around_the_text_is_removed_and_counted(bench, line: str, kind: str):
    clean = bench("boilerplate_lines")
    assert clean.text(f"{PROSE}\n  {line}\n{PROSE}") == f"{PROSE}\n{PROSE}"
    assert clean.counts(f"{line}\n{PROSE}\n{line}") == {kind: 2}


@pytest.mark.parametrize(
    "line",
    [
        PROSE,
        "",
        "Read more books, said the teacher to her class, and you will never be alone in this wide world.",
        "The commission found that the company, whose website says that it uses cookies, had kept the names of "
        "visitors for eleven years without asking any of them, and fined it more than it had earned by that.",
        "Copyright law protects the author.",
        "If x > 3 then the | operator of the language is applied to both values, and its result is printed > once.",
    ],
)
def test_prose_stays(bench, line: str):
    assert bench("boilerplate_lines").text(f"{line}\n{PROSE}") == f"{line}\n{PROSE}"


def test_page_of_nothing_else_is_dropped(bench):
    assert bench("boilerplate_lines").reason("Home | News | Contact\n\nLog in") == "only_boilerplate"


def test_phrases_of_another_language_can_be_given(bench):
    clean = bench("boilerplate_lines", commands=["Weiterlesen"], notices=["verwendet Cookies"])
    assert clean.text(f"Weiterlesen …\nDiese Seite verwendet Cookies.\nLog in\n{PROSE}") == f"Log in\n{PROSE}"


def test_rules_can_be_switched_off(bench):
    off = bench("boilerplate_lines", commands=[], notices=[], copyright=False, min_separators=0)
    text = "Log in\nuses cookies\n© 2020\nA | B | C"
    assert off.text(text) == text
