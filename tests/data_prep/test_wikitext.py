"""Wikitext: the words that a reader sees stay, markup and furniture go."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import lxml.html
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.text import table
from data_prep.text.wiki_numbers import MONEY
from data_prep.text.wiki_page import ENGLISH_LINKS, Page
from data_prep.text.wikitext import drop_empty_sections, plain_text
from data_prep.text.wikitext_source import (
    HEADING,
    PLACE,
    SHOWN,
    drop_quotes,
    drop_quotes_of_line,
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


# -- MediaWiki's own parser tests as the oracle: the words of the HTML that it makes are those of our text -------

EQUAL, ALL = 825, 890
"""Cases. What differs needs a wiki's own variant, namespaces, subpages or interwiki prefixes, or is damage: rows
outside of tables, unknown tags, links in links, pictures by their address."""
BLOCKS = {"p", "div", "li", "ul", "ol", "dl", "dt", "dd", "blockquote", "pre", "hr", "br", "center"}
LEFT_OUT = {"mw-editsection", "reference", "references", "toc", "thumb", "gallery", "error", "autonumber"}
OTHER_OUTPUT = re.compile(
    r"\b(?:pst|msg|cat|ill|comment|disabled|showindicators|showtitle|local|preload)\b|(?:html|wt)2wt"
)
NEEDS_MORE = re.compile(r"\{\{|</?(?:a?side|style|dummy|static)?tag\b|<langconvert", re.IGNORECASE)
"""Templates and hooks that only the tests have."""
RESULTS = ("html/php+tidy", "html+tidy", "html/php", "html", "html/*")


def cases(file: Path) -> Iterator[tuple[str, str]]:
    """The wikitext and the HTML of each case that a page alone decides."""
    for case in re.split(r"(?m)^!! *test\n", file.read_text("utf-8"))[1:]:
        pieces = re.split(r"(?m)^!! *(\S+).*\n", re.split(r"(?m)^!! *end\b", case)[0])
        parts = dict(zip(map(str.lower, pieces[1::2]), pieces[2::2], strict=True))
        options = parts.get("options", "").split("parsoid")[0]
        result = next((parts[name] for name in RESULTS if name in parts), None)
        if result is None or "wikitext" not in parts or NEEDS_MORE.search(parts["wikitext"]):
            continue
        if not OTHER_OUTPUT.search(options) and not re.search(r"section=|replace=", options):
            yield parts["wikitext"].rstrip("\n"), result


def shown(element: Any) -> str:
    """Its text, blocks in lines of their own, headings marked as `drop_empty_sections` takes them."""
    inside = (element.text or "") + "".join(shown(child) + (child.tail or "") for child in element)
    name = element.tag
    if not isinstance(name, str) or name in {"table", "style", "script", "math", "figure"}:
        return "\n"
    if element.get("id") == "toc" or not LEFT_OUT.isdisjoint((element.get("class") or "").split()):
        return "\n" if name in BLOCKS else ""
    if re.fullmatch("h[1-6]", name):
        return f"\n\x02{name[1]}{' '.join(inside.split())}\n"
    return f"\n{inside}\n" if name in BLOCKS else inside


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_words_are_those_that_mediawiki_shows(corpora: Path):
    equal = total = 0
    for wikitext, html in cases(corpora / "wikipedia" / "parser-tests" / "parserTests.txt"):
        lines = shown(lxml.html.fromstring(f"<div>{html}</div>")).split("\n")
        expected = drop_empty_sections("\n".join(map(str.strip, lines)))
        total += 1
        equal += words_of(plain_text(wikitext, ENGLISH_LINKS)) == words_of(expected)
    assert total == ALL
    assert equal >= EQUAL
