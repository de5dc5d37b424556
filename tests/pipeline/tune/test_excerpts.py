"""Lines of predictions repeat texts, but no long ones."""

from __future__ import annotations

import pytest

from pipeline.tune.forms.base import EXCERPT_CHARACTERS, excerpt


@pytest.mark.parametrize("length", [0, 10, EXCERPT_CHARACTERS])
def test_a_text_that_fits_is_repeated_whole(length: int):
    text = "é" * length
    assert excerpt(text, around=length) == text


@pytest.mark.parametrize("around", [0, 1500, 2999, 4000])
def test_of_a_long_text_the_part_around_a_character_is_repeated(around: int):
    text = "".join(chr(0x4E00 + number) for number in range(3000))
    found = excerpt(text, around)
    assert len(found) == EXCERPT_CHARACTERS
    assert found in text
    assert text[min(around, 2999)] in found
