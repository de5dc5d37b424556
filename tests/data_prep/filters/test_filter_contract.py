"""What every filter keeps: pure, total, idempotent, linear in time, unchanged objects for unchanged text."""

from functools import cache

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data_prep.filters import FILTERS, FilterChain, Passed
from tests.data_prep.filters.bench import ADAPTER, document

SETTINGS = {kind: {"kind": kind} for kind in FILTERS} | {
    "language": {"kind": "language", "allowed": ["en", "de"], "min_probability": 0.5},
    "pii": {"kind": "pii", "cards": True, "keys": True},
    "length": {"kind": "length", "min_characters": 1, "max_words": 1000},
    "c4": {"kind": "c4", "min_sentences": 0, "min_words_per_line": 1},
    "gopher_quality": {"kind": "gopher_quality", "min_words": 0, "min_stop_words": 0},
}
"""Settings under which small texts reach most rules."""
ADVERSARIES = (
    "a;a@;@a.;.a@;a@a.a;1 ;1.;1:;1-;::;+1;(;-;AB12;1.1.1.1 ;2024-01-01 ;01.02.2003 04:05 ;+1 ;0;a [at] ;"
    'a at b dot ;"a;"a"@;-----BEGIN ;[;];[1];[[1];\n;\n \n;a\n;| ;... ;a b ;© ;copyright ;cookies ;{;\x00;'
    "é;Ã;Ã©;Ã\x00;â€™ ;漢;ก;\u200b;e\u0301;\u0301"
)
"""Repeated, these are the worst that we know for some rule or pattern."""
PIECES = (
    "a;The end. ;\n;\n\n; ;\r\n;\x85;\x00;\x9d;\xa0;\u200b;\ufeff;e\u0301;Ã;Â;©;â€™;Ã\x00;é;漢字;ไทย;"
    'हिन्दी;|; | ;»;- ;•;#;...;…;.";[;];1;edit;citation needed;[1];{;lorem ipsum;javascript;'
    "cookie policy;©2020;x@y.org;@;.;8.8.8.8;2001:4860:4860::8888;:;+1 415-555-2671;(415) 555-2671;-;"
    "DE89 3704 0044 0532 0130 00;GB82WEST12345698765432;Read more;log in;Home | News | Contact"
)
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES.split(";")), max_size=25).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
ANY_KIND = pytest.mark.parametrize("kind", FILTERS)


@cache
def build(kind: str):
    return ADAPTER.validate_python(SETTINGS[kind]).build()


@ANY_KIND
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
@example(text="")
@example(text=" \n\t ")
@example(text="\x00\x01\x7f")
@example(text="\u200b\ufeff")
@example(text="\ud7ff\ue000\U0010ffff")
def test_filter_applied_twice_gives_the_same(kind, text):
    apply = build(kind)
    first = apply(document(text))
    assert apply(document(text)) == first
    if isinstance(first, Passed):
        second = apply(first.document)
        assert isinstance(second, Passed), second
        assert second.document is first.document


@ANY_KIND
def test_time_grows_with_the_length_of_a_text_and_not_with_its_square(kind):
    """A pattern that is tried from each of n characters up to the end would take hours for these."""
    apply = build(kind)
    for piece in ADVERSARIES.split(";"):
        apply(document(piece * (100_000 // len(piece))))
    for piece in ("word ", "1 ", "a@", "[", "\n"):
        apply(document(piece * (300_000 // len(piece))))


@ANY_KIND
def test_every_setting_of_a_filter_enters_its_identity(kind):
    config = ADAPTER.validate_python(SETTINGS[kind])
    assert config.identity().keys() == type(config).model_fields.keys()


def test_chain_counts_what_each_filter_does():
    configs = [
        {"kind": "unicode"},
        {"kind": "length", "min_words": 3},
        {"kind": "pii"},
        {"kind": "length", "max_characters": 40},
    ]
    chain = FilterChain([ADAPTER.validate_python(each) for each in configs])
    texts = ["two words", "it costs nothing", "mail x@y.org or a@b.com", "it\xa0costs\xa0nothing", "w " * 40]
    left = [chain.apply(document(text)) for text in texts]
    passed = ["it costs nothing", "mail <EMAIL> or <EMAIL>", "it costs nothing"]
    assert [each and each.text for each in left] == [None, *passed, None]
    assert {key.removeprefix("filters."): count for key, count in chain.counts.items()} == {
        "00_unicode.kept": 5,
        "00_unicode.changed": 1,
        "01_length.kept": 4,
        "01_length.dropped": 1,
        "01_length.dropped.too_short": 1,
        "02_pii.kept": 4,
        "02_pii.changed": 1,
        "02_pii.emails": 2,
        "03_length.kept": 3,
        "03_length.dropped": 1,
        "03_length.dropped.too_long": 1,
    }
    assert [each["reason"] for each in chain.examples] == ["too_short", "too_long"]


def test_configurations_are_keys_and_a_file_that_they_name_counts_by_content(tmp_path):
    for name, content in (("a", "ox\n"), ("b", "ox\n"), ("c", "cow\n")):
        (tmp_path / name).write_text(content)
    made = [ADAPTER.validate_python({"kind": "c4", "bad_words": tmp_path / name}) for name in "abc"]
    one, same, other = (config.identity() for config in made)
    assert one == same != other
    assert len({*made, *made}) == 3
