"""Wikitext: the words that a reader sees stay, markup and furniture go."""

import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.text import table
from data_prep.text.wiki_numbers import MONEY
from data_prep.text.wiki_page import ENGLISH_LINKS, Page, is_disambiguation
from data_prep.text.wikitext import plain_text
from data_prep.text.wikitext_source import (
    HEADING,
    PLACE,
    REPAIRS,
    SHOWN,
    drop_quotes,
    drop_quotes_of_line,
    repair_punctuation,
)

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "wikitext.jsonl").read_text("utf-8").splitlines()
]


def render(wikitext: str, lang: str = "en", dropped: Counter[str] | None = None) -> str:
    page = Page("Roma", lang, datetime(2020, 3, 2, 14, 5))
    return plain_text(wikitext, ENGLISH_LINKS, page=page, dropped=dropped)


@pytest.mark.parametrize("case", CASES, ids=[f"{number}: {case['of']}" for number, case in enumerate(CASES)])
def test_wikitext_reads_as_on_the_page(case):
    assert render(case["wikitext"], case["lang"]) == case["text"]


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="&"), min_size=1)
)
def test_nowiki_protects_any_characters(inner):
    inner = inner.replace("</", "")
    assert render(f"a<nowiki>{inner}</nowiki>b") == f"a{inner}b"
    assert render(f"a<pre>{inner}</pre>b") == (f"a\n{inner}\nb" if inner else "ab")


@given(
    st.lists(st.sampled_from(["[[", "]]", "{{", "}}", "|", "a", "\n", "{|", "|}", "<ref>", "File:", "=="]))
)
def test_any_mess_of_markup_gives_text_without_brackets(tokens):
    text = render("".join(tokens))
    assert not any(mark in text for mark in ("[[", "]]", "{{", "}}", "<ref"))


def test_thousands_of_unclosed_tags_take_linear_time():
    assert render("<ref>x" * 20_000 + "<!--" * 20_000) == "x" * 20_000


@pytest.mark.parametrize(
    ("left", "right"), [("{{a|", "}}"), ("[[a|", "]]"), ("{|\n", "\n|}"), ("{{nowrap|", "}}")]
)
def test_deep_nesting_takes_linear_time(left, right):
    assert "{" not in render(left * 3000 + "x" + right * 3000)


# -- disambiguation pages ------------------------------------------------------------------------------------

DISAMBIGUATIONS = """
    {{Disambiguation}} {{disambig|geo}} {{Hndis|Smith}} {{School_disambiguation}} {{TLAdisambig}} {{Begriffsklärung}}
    {{homonymie}} {{Desambiguación}} {{неоднозначность|тип=город}} __DISAMBIG__ {{Aimai}} {{동음이의}} {{消歧義}} {{dp}}
    {{Template:Disambig-cleanup}}
"""
ARTICLES = """
    {{disambiguation_needed|date=2010}} {{Voir_homonymes|A}} {{Nota_disambigua|b}} {{other_uses}} {{DisambigR|x}}
    {{About|a|b|A_(disambiguation)}} {{Begriffsklärungshinweis}} [[Disambiguation]] {{lang|en|disambiguation}}
    {{Redirect|A|b|A_(disambiguation)}} {{ver_desambiguação}} {{surname}} {{R_from_disambiguation}}
"""


@pytest.mark.parametrize("mark", DISAMBIGUATIONS.split())
def test_disambiguation_pages_are_recognised_in_many_languages(mark):
    assert is_disambiguation(f"A may be:\n* [[B]]\n{mark}\n")


@pytest.mark.parametrize("mark", ARTICLES.split())
def test_articles_that_point_to_a_disambiguation_are_none(mark):
    assert not is_disambiguation(f"{mark}\n'''A''' is a thing.")


# -- templates -----------------------------------------------------------------------------------------------


def test_templates_that_show_nothing_are_counted_where_they_leave_a_sentence():
    dropped: Counter[str] = Counter()
    wikitext = (
        "{{Infobox x\n|a={{unknown|1}}\n}}\nA {{Unknown|b}} c{{sfn|D}}, {{unknown|[[e]]}} f.\n\n{{reflist}}\n"
    )
    assert render(wikitext, dropped=dropped) == "A c, f."
    assert dropped == {"unknown": 2, "sfn": 1}


TEMPLATES = table("wiki_templates")


def named(entries):
    """All names in the lists of a form, or of the arguments of a form."""
    return {*entries} if isinstance(entries, list) else set().union(*map(named, entries.values()))


NAMES = ["formatnum:", "formatnombre:", *sorted({*MONEY, *named(TEMPLATES)})]
WORDS = (
    "1 12345.6 -5 nan 1e400 x ''y'' [[a|b]] {{nowrap|z}} 3=q e=3 x= km to <br> 31.2.1799 Nome=A Attività=b"
)
VALUES = [*WORDS.split(), "AnnoMorte=?", "<nowiki>|}}</nowiki>", "", "\n", "9" * 20]


@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(VALUES), max_size=6),
    st.sampled_from([*TEMPLATES, "en", "bg"]),
)
def test_any_parameters_of_any_template_give_text(name, values, lang):
    text = render(f"a {{{{{'|'.join([name, *values])}}}}} b", lang)
    assert text.startswith("a")
    assert text.endswith("b")
    assert not any(mark in text for mark in (HEADING, PLACE, *SHOWN))


# -- bold and italic: which apostrophes are markup, and which are text ----------------------------------------


def do_quotes(line: str) -> str:
    """`Parser::doQuotes` of MediaWiki, statement by statement and in bytes as PHP has them, without the HTML."""
    pieces = re.split(b"(''+)", line.encode())
    bold = italic = 0
    for i in range(1, len(pieces), 2):
        if len(pieces[i]) == 4:
            pieces[i - 1] += b"'"
            pieces[i] = b"'''"
        elif len(pieces[i]) > 5:
            pieces[i - 1] += b"'" * (len(pieces[i]) - 5)
            pieces[i] = b"'''''"
        italic += len(pieces[i]) in (2, 5)
        bold += len(pieces[i]) in (3, 5)
    if bold % 2 == 1 and italic % 2 == 1:
        single_letter = multi_letter = space = -1
        for i in range(1, len(pieces), 2):
            if len(pieces[i]) != 3:
                continue
            last = pieces[i - 1][-1:]
            last_but_one = pieces[i - 1][-2:][:1]
            if last == b" ":
                if space == -1:
                    space = i
            elif last_but_one == b" ":
                single_letter = i
                break
            elif multi_letter == -1:
                multi_letter = i
        for chosen in (single_letter, multi_letter, space):
            if chosen > -1:
                pieces[chosen] = b"''"
                pieces[chosen - 1] += b"'"
                break
    return b"".join(pieces[0::2]).decode()


LINES = st.lists(
    st.sampled_from(["'", "''", "'''", "'''''", " ", "l", "été", "à", "x", "l'", "Time", "\n", "日"])
).map("".join)


@given(LINES)
@example("'''a'' b'''c'' d l'''e''")
@example("à'''b''")
@example(" à'''b'' c'''d'''")
def test_quotes_are_read_as_mediawiki_reads_them(text):
    assert drop_quotes(text) == "\n".join(map(do_quotes, text.split("\n")))
    assert drop_quotes_of_line(text.replace("\n", " ")) == do_quotes(text.replace("\n", " "))


@given(LINES)
def test_a_page_keeps_the_apostrophes_that_its_lines_keep(text):
    lines = [" ".join(do_quotes(line).split()) for line in text.split("\n")]
    expected = [line if re.search(r"\w", line) else "" for line in lines]
    assert [line for line in render(text).split("\n") if line] == list(filter(None, expected))


# -- hollow punctuation: every rule does what its name says, alone, and leaves ordinary text -------------------------

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
