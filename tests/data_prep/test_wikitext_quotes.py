"""Bold and italic quotes: which apostrophes are markup and which are text, as MediaWiki tells them apart."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.text.wiki_page import ENGLISH_LINKS
from data_prep.text.wikitext import plain_text
from data_prep.text.wikitext_source import drop_quotes, drop_quotes_of_line


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
def test_quotes_are_told_as_mediawiki_tells_them(text):
    assert drop_quotes(text) == "\n".join(map(do_quotes, text.split("\n")))
    assert drop_quotes_of_line(text.replace("\n", " ")) == do_quotes(text.replace("\n", " "))


@given(LINES)
def test_a_page_keeps_the_apostrophes_that_its_lines_keep(text):
    lines = [" ".join(do_quotes(line).split()) for line in text.split("\n")]
    expected = [line if re.search(r"\w", line) else "" for line in lines]
    assert [line for line in plain_text(text, ENGLISH_LINKS).split("\n") if line] == list(
        filter(None, expected)
    )


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "''Time'''s cover and the ''Globe'' stay\nthe '''Globe''''s too",
            "Time's cover and the Globe stay\nthe Globe's too",
        ),
        ("''''hello'''' '''''Both''' italic''", "'hello' Both italic"),
        ("''The New York Times''' critic", "The New York Times' critic"),
        ("dogs'' tails and ''rock 'n' roll''", "dogs tails and rock 'n' roll"),
        ("l'''Odyssée'' et ''L'Iliade''", "l'Odyssée et L'Iliade"),
        (
            "la mort d'''[[Hernani]]'', ''[[Ruy Blas]]''\nun d'''a'', d'''b''",
            "la mort d'Hernani, Ruy Blas\nun da, db",
        ),
        ("Il lit '''l'''' ''Équipe'' et qu''''on'''", "Il lit l' Équipe et qu'on"),
        ("l'[[L'Équipe|''Équipe'']] et l'''[[Aurore]]''", "l'Équipe et l'Aurore"),
        (
            "L'''Orlando furioso'' e l''''Italia''' di ''D'Annunzio''",
            "L'Orlando furioso e l'Italia di D'Annunzio",
        ),
        ("dell'''Eneide'', nel ''Paradiso'' e ''po' di tutto''", "dell'Eneide, nel Paradiso e po' di tutto"),
        (
            "''[['Ndrangheta]]'' e [[Lista d''e paise d''o munno]]",
            "'Ndrangheta e Lista d''e paise d''o munno",
        ),
        ("'''Foo<br>''bar''''' and <small>l'''x''</small> '''y'''", "Foo\nbar and l'x y"),
        ("un '<nowiki/>''mot''<ref>a</ref>'', l'{{x}}''autre''", "un 'mot, l'autre"),
        ("&#39;&#39;not italic&#39;&#39; {{'}}''italic''{{'}}", "''not italic'' 'italic'"),
        ("* l'''Aurore''\n; d'''Artagnan'', ''Les Trois''", "l'Aurore\nd'Artagnan, Les Trois"),
        ("== L'''Odyssée'' ==\nIt '''never ''closes\nnext'' line", "L'Odyssée\nIt 'never closes\nnext line"),
        ("{{lang|fr|l'''Odyssée''}} <!-- '' -->is", "l'Odyssée is"),
    ],
)
def test_lines_read_as_mediawiki_renders_them(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text
