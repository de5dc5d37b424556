"""MediaWiki's own parser tests as the oracle: the words of the HTML that it makes of wikitext are those of our text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lxml.html

from data_prep.text.wiki_page import ENGLISH_LINKS
from data_prep.text.wikitext import drop_empty_sections, plain_text

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


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_words_are_those_that_mediawiki_shows(corpora: Path):
    equal = total = 0
    for wikitext, html in cases(corpora / "wikipedia" / "parser-tests" / "parserTests.txt"):
        lines = shown(lxml.html.fromstring(f"<div>{html}</div>")).split("\n")
        expected = drop_empty_sections("\n".join(map(str.strip, lines)))
        total += 1
        equal += words(plain_text(wikitext, ENGLISH_LINKS)) == words(expected)
    assert total == ALL
    assert equal >= EQUAL
