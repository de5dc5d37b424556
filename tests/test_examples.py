"""Examples that hypothesis draws are the same in every run, whatever ran before."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[str, int]]:
    found = []

    @settings(settings.get_profile("ci"), max_examples=300)
    @given(st.text(), st.integers())
    def draw(text: str, number: int) -> None:
        found.append((text, number))

    draw()
    return found


def test_examples_are_the_same_before_and_after_a_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = drawn()
    constants = ", ".join(f"{number}, 'a constant {number}'" for number in range(10_000, 10_500))
    (tmp_path / "full_of_constants.py").write_text(f"CONSTANTS = [{constants}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("full_of_constants")
    try:
        assert drawn() == before
    finally:
        del sys.modules["full_of_constants"]
