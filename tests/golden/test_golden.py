"""Every value that is computed now is the recorded one: `make golden` says the same in words, and records new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.book import KINDS, MEANT, RAISE, compute, differences, read


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_recorded_ones(kind: str, tmp_path: Path):
    different = list(differences(read(kind), compute(kind, tmp_path), KINDS[kind]))
    assert not different, "\n".join(["`make golden` compares; what differs:", *different, MEANT])


def test_differences_are_told_in_words():
    old = {"a": {"b": [1, 2.0], "gone": "x"}, "processor": "one"}
    new = {"a": {"b": [1, 2.0001], "new": None}, "processor": "other"}
    assert list(differences(old, new, 1e-3)) == ["a.gone is gone; it was 'x'", "a.new is new: None"]
    assert len(list(differences(old, new | {"processor": "one"}, 1e-3))) == 3


def test_an_artefact_that_changes_has_another_version():
    old = {"tokens": "version 4, aa", "dedup": "version 4, aa"}
    (same, raised) = differences(old, {"tokens": "version 4, bb", "dedup": "version 5, bb"})
    assert same.endswith(RAISE)
    assert RAISE not in raised
