"""Text as words: case, punctuation and spacing do not matter, everything else does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.decontaminate.words import hash_runs, prefix_sums, spell, split_words
from tests.data_prep.decontaminate.oracle import words_of


def spelled(text: str) -> str:
    return spell(split_words([text]).codes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The quick, brown fox!", "the QUICK brown\nfox"),
        ("it 's a charming journey .", "It's a charming journey."),
        ("“Çà et là” – ÉTÉ…", 'çà et là" été'),
        ("a\u00a0b\u3000c\td", "a b c d"),
        ("你好，世界。", "你好 世界"),
        ("ΟΔΟΣ", "οδος"),
    ],
)
def test_case_punctuation_and_spacing_do_not_matter(first, second):
    assert spelled(first) == spelled(second)


@pytest.mark.parametrize(
    ("first", "second"), [("cafe", "café"), ("12 3", "1 23"), ("ab c", "a bc"), ("9 lives", "lives")]
)
def test_letters_digits_and_the_limits_of_words_matter(first, second):
    assert spelled(first) != spelled(second)


def test_every_character_of_a_script_without_spaces_is_a_word():
    assert spelled("東京tower1、ไทย") == "東 京 tower1 ไ ท ย"


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("aÀ世ก 'éß-1\n\U0001f600\U00020000İ"))))
def test_words_and_their_places_are_those_of_a_plain_loop(texts):
    words = split_words(texts)
    every = np.arange(words.num_words)
    found = list(
        zip(
            words.text_of(every).tolist(),
            [spell(words.codes[words.starts[i] : words.starts[i + 1]]) for i in range(words.num_words)],
            words.places.tolist(),
            words.ends(every).tolist(),
            strict=True,
        )
    )
    # The oracle knows no planes beyond the first, where U+20000 is Han.
    texts = [text.replace("\U00020000", "世") for text in texts]
    expected = [(t, *word) for t, text in enumerate(texts) for word in words_of(text)]
    assert [(t, word.replace("\U00020000", "世"), a, b) for t, word, a, b in found] == expected
    assert words.counts.tolist() == [len(words_of(text)) for text in texts]


def test_equal_runs_have_equal_hashes_at_any_place_and_others_do_not():
    words = split_words(["x y one two three", "one two THREE z", "one twothree z"])
    sums = prefix_sums(words.codes)
    starts, ends = words.starts[[2, 5, 9]], words.starts[[5, 8, 11]]
    first, second, other = hash_runs(sums, starts, ends).tolist()
    assert first == second != other
