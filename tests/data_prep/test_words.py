"""Words: what counts as the same word, whatever it is written with, and where it stands in the text."""

import html
import unicodedata
from collections.abc import Callable
from html.entities import codepoint2name
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.dedup.texts import hash_words
from data_prep.text.words import lines, spell, split_joined, split_words, words
from tests.data_prep.decontaminate.oracle import words_of

INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u2060\ufe0f\ufeff\u034f"
"""Soft hyphen, zero-width space, non-joiner, joiner, mark of direction, word joiner, variation selector, byte order
mark, grapheme joiner."""
ALPHABET = (
    "aZé ß\u0130\u0131ñÅﬁ½ǆ.'-\n09٣１ＡаЙΐςאב한ㄱ世か゛ガｶﾞー"
    "ไทดี\u0e33ខ្មែမြကิ中नमस्तेक़\u09cb\u0d4aפּ①™\U0001d400\U00020000\U0001f600"
)


def spelled(text: str) -> str:
    return spell(split_words([text]).codes)


def fullwidth(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def named_entities(text: str) -> str:
    return "".join(f"&{codepoint2name[ord(c)]};" if ord(c) in codepoint2name else c for c in text)


FORMS: dict[str, Callable[[str], str]] = {
    **{form: (lambda text, form=form: unicodedata.normalize(form, text)) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "upper": str.upper, "lower": str.lower, "casefold": str.casefold, "swapcase": str.swapcase,
    "fullwidth": fullwidth,
}  # fmt: skip
ESCAPES: dict[str, Callable[[str], str]] = {
    "named": named_entities,
    "decimal": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "hexadecimal": lambda text: "".join(f"&#x{ord(c):X};" for c in text),
    "twice": lambda text: html.escape(html.escape(named_entities(text))),
}


@st.composite
def disguises(draw) -> Callable[[str], str]:
    """Forms one after another, invisible characters behind random ones, and maybe entities in the end."""
    forms = draw(st.lists(st.sampled_from(sorted(FORMS)), max_size=3))
    seeds = draw(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(INVISIBLE)), max_size=6))
    escape = ESCAPES.get(draw(st.sampled_from(["none", *ESCAPES])), str)

    def disguise(text: str) -> str:
        for form in forms:
            text = FORMS[form](text)
        for share, character in seeds:
            place = 1 + round(share * max(0, len(text) - 1))
            text = text[:place] + character + text[place:]
        return escape(text)

    return disguise


@given(st.text(st.sampled_from(ALPHABET), max_size=30), disguises())
def test_a_text_has_the_same_words_under_any_disguise(text, disguise):
    assert spelled(disguise(text)) == spelled(text)
    hashed = hash_words(split_words([text, disguise(text)]))
    assert np.array_equal(hashed[0], hashed[1])


@pytest.mark.parametrize("name", FORMS)
def test_every_character_has_the_same_words_in_every_form(name):
    plain = [f"a{chr(number)}b" for number in range(0x20000) if not 0xD800 <= number < 0xE000]
    changed = [(text, formed) for text in plain if (formed := FORMS[name](text)) != text]
    first, second = split_words([text for text, _ in changed]), split_words([text for _, text in changed])
    assert np.array_equal(first.counts, second.counts)
    assert np.array_equal(first.codes, second.codes)


@given(
    st.sampled_from(["A charming journey", "Ça été ßo", "নমস্তে বাংলা লিপি ো", "می‌خواهم بنویسم این"]),
    disguises(),
)
@example("A charming journey", lambda text: "\u00ad".join(text))
def test_a_short_text_is_found_and_exactly_it_is_cut_out(text, disguise):
    index = NgramIndex.build([text], 13, 3)
    hidden = disguise(text)
    document = f"Before it, {hidden} — and after."
    split = split_words([document])
    _, (word,), (count,) = index.find(split)
    start, end = int(split.places[word]), int(split.ends[word + count - 1])
    assert document[:start] == "Before it, "
    assert document[end:] == " — and after."


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("The quick, brown fox!", "the QUICK brown\nfox", True),
        ("it 's a charming journey .", "It's a charming journey.", True),
        ("“Çà et là” – ÉTÉ…", 'çà et là" été', True),
        ("你好，世界。", "你好 世界", True),
        ("AT&amp;T&nbsp;rocks", "AT&T rocks", True),
        ("cafe", "café", True),
        ("п\u02bcять", "п'ять", True),
        ("12 3", "1 23", False),
        ("ab c", "a bc", False),
        ("9 lives", "lives", False),
        ("1984", "2084", False),
        ("AT&T;x", "AT T;y", False),
        ("कि", "कु", False),
    ],
)
def test_letters_digits_and_limits_of_words_matter_and_nothing_else(first, second, same):
    assert (spelled(first) == spelled(second)) == same


def test_digits_are_alike_where_that_is_asked_for():
    def folded(text: str) -> str:
        return spell(split_joined(text, np.array([0, len(text)]), fold_digits=True).codes)

    assert folded("in 1984, ٣ ½") == folded("in 2084, 7 3⁄4") != folded("in 20845, 7 3⁄4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("日本語のtext 1984", "日 本 語 の text 1984"),
        ("ที่นี่", "ที่ นี่"),
        ("한국어 문장", "한국어 문장"),
        ("Ein\u00adheit snake_case, caf&eacute; ＦＵＬＬ", "Ein\u00adheit snake case caf&eacute; ＦＵＬＬ"),
    ],
)
def test_words_are_as_they_are_written_and_characters_of_scripts_without_spaces_stand_alone(text, expected):
    assert words(text) == tuple(expected.split(" "))


def test_every_character_of_a_script_without_spaces_is_a_word_with_its_marks():
    assert spelled("東京tower1、ไทยดี") == "東 京 tower1 ไ ท ย ดี"
    assert spelled("コーヒーとか\u3099") == "コ ー ヒ ー と か"


PLAIN = "aÀ世กี ้'éß\u0301-1\n\U0001f600\U00020000İ½&;\u00ad\u200d"


@given(st.lists(st.lists(st.sampled_from([*PLAIN, "&eacute;"])).map("".join)))
def test_words_and_their_places_are_those_of_a_plain_loop(texts):
    found = split_words(texts)
    spellings = [spell(found.codes[a:b]) for a, b in pairwise(found.starts[: found.num_words + 1])]
    numbers = found.text_of(np.arange(found.num_words)).tolist()
    rows = zip(numbers, spellings, found.places.tolist(), found.ends.tolist(), strict=True)
    assert [*rows] == [(t, *word) for t, text in enumerate(texts) for word in words_of(text)]
    assert found.counts.tolist() == [len(words_of(text)) for text in texts]


def test_an_entity_does_not_reach_into_the_next_text():
    assert split_words(["x &am", "p; y", "&lt", ";"]).counts.tolist() == [2, 2, 1, 0]


def test_lines_have_no_white_space_around_them_and_are_never_empty():
    assert lines(" one \n\n \t\ntwo\r\n") == ("one", "two")
