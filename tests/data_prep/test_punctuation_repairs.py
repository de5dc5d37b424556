"""Every rule about hollow punctuation does what its name says, alone, and leaves ordinary text as it is."""

from __future__ import annotations

import pytest

from data_prep.text.wikitext_source import REPAIRS, repair_punctuation

EXAMPLES = {
    "empty brackets": ("Tokyo (, ; ) is [ ] large", "Tokyo  is  large"),
    "empty full-width brackets": ("東京（、，）は", "東京は"),
    "full-width bracket before punctuation": ("東京（、首都）は", "東京（首都）は"),
    "punctuation before full-width bracket": ("東京（首都、）は", "東京（首都）は"),
    "repeated full-width commas": ("東京、，首都", "東京、首都"),
    "full-width comma before full stop": ("首都、。", "首都。"),
    "repeated spaces": ("a  large\t city", "a large city"),
    "punctuation before bracket": ("(the capital ; ) is", "(the capital) is"),
    "bracket before punctuation": ("(, ; the capital) is", "(the capital) is"),
    "space before comma": ("Tokyo , the capital", "Tokyo, the capital"),
    "repeated commas": ("Tokyo, , the capital", "Tokyo, the capital"),
    "space before full stop": ("the capital .", "the capital."),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_each_rule_repairs_its_example(name: str):
    before, after = EXAMPLES[name]
    signs, pattern, replacement = REPAIRS[name]
    assert any(sign in before for sign in signs)
    assert pattern.sub(replacement, before) == after


def test_rules_build_on_those_before_them():
    assert repair_punctuation("Tokyo (, ) , the capital (  ) .") == "Tokyo, the capital."
    assert repair_punctuation("f(x) = a[i], g() and h[] stay. So do 1, 2; and (this).") == (
        "f(x) = a[i], g() and h[] stay. So do 1, 2; and (this)."
    )
