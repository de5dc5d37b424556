"""FineWeb's three rules at their limits."""

from __future__ import annotations

import pytest


def page(*groups: tuple[str, int]) -> str:
    """Lines, each with its number so that none is a duplicate: `(ending, how many)`."""
    return "\n".join(
        f"line {place}-{number} of a page with enough characters{ending}"
        for place, (ending, count) in enumerate(groups)
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (page((".", 13), ("", 87)), None),
        (page((".", 12), ("", 88)), "unpunctuated_lines"),
        (page(("。", 5), ("？", 5), ("!", 5), ("", 60)), None),
        ("", "empty"),
        (" \n\t\n", "empty"),
        ("\n".join([f"{n:029}." for n in range(100)]), None),
        ("\n".join([f"{n:030}." for n in range(33)] + [f"{n:028}." for n in range(67)]), "short_lines"),
        ("\n".join([f"{n:030}." for n in range(34)] + [f"{n:028}." for n in range(66)]), None),
        ("\n".join([f"{n:039}." for n in range(19)] + ["x" * 39 + "."] * 2), None),
        ("\n".join([f"{n:039}." for n in range(17)] + ["x" * 39 + "."] * 3), "duplicate_lines"),
    ],
)
def test_limits_of_the_paper(bench, text: str, reason: str | None):
    assert bench("fineweb").reason(text) == reason


def test_sentence_terminals_of_many_scripts_are_known(bench):
    assert {bench("fineweb").reason(page((mark, 100))) for mark in ".!?。！？।؟።"} == {None}
    assert {bench("fineweb").reason(page((mark, 100))) for mark in ",;:\"')"} == {"unpunctuated_lines"}
