"""Cleaning of text: what may stay, and that shortcuts for clean text change nothing."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.text import clean_text

MESSY = st.text(
    st.sampled_from("ab \n\r\t\x00\x0b\x0c\x1c\x85\u00a0\u00ad\u2028\u3000\ud800\ufeffé"), max_size=30
)


def rules_spelled_out(text: str, most_newlines: int) -> str:
    text = re.sub("\r\n|[\r\x0b\x0c\x85\u2028\u2029]", "\n", text)
    text = "".join(
        c for c in text if c in "\t\n" or not re.match("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff]", c)
    )
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(f"\n{{{most_newlines},}}", "\n" * most_newlines, text).strip("\n")


@pytest.mark.parametrize("keep_chapters", [False, True])
@given(text=st.text() | MESSY)
@example(text="One.\n\nStill one.\n\n\nTwo.\n\n\n\n\nThree.")
@example(text="a  \r\n\r\n\r\n\tb\x00\u2028c" + " " * 1_000_000 + "d\ud800")
def test_text_is_cleaned_as_the_rules_say(keep_chapters, text):
    expected = rules_spelled_out(text, 3 if keep_chapters else 2)
    assert clean_text(text, keep_chapters=keep_chapters) == expected
    assert clean_text(expected, keep_chapters=keep_chapters) == expected
