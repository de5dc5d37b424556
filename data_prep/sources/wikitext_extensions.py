"""Extension tags of wikitext: references, formulas, galleries and the like.

MediaWiki takes them out of a page before it parses anything else, each up to the first closing tag. The same is
done here, which also halves what the parser has to read.
"""

from __future__ import annotations

import re

FORMULAS = frozenset({"math", "chem", "ce"})
DROPPED_EXTENSIONS = (
    FORMULAS
    | {"ref", "references", "score", "hiero", "graph", "timeline", "syntaxhighlight", "source", "gallery"}
    | {"imagemap", "mapframe", "maplink", "inputbox", "categorytree", "charinsert", "indicator", "section"}
    | {"templatedata", "templatestyles"}
)
_PROTECTING = frozenset({"nowiki", "pre"})
_OPENERS = re.compile(
    r"<!--|<(nowiki|pre|" + "|".join(sorted(DROPPED_EXTENSIONS)) + r")(?:\s[^<>]*|/)?>", re.IGNORECASE
)
_PLACE = "\x03"
"""Stands around the number of a formula until the page is rendered. No control character can come out of an XML
file."""
_PLACES = re.compile(f"{_PLACE}(\\d+){_PLACE}")


def take_extensions(wikitext: str) -> tuple[str, list[str]]:
    """The page without comments and dropped extension tags, and its formulas, in whose places marks are left.

    `nowiki` and `pre` protect what they hold. Linear in the length of the text, however many tags are left open:
    a tag that is never closed is looked for once.
    """
    kept: list[str] = []
    formulas: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while opener := _OPENERS.search(wikitext, position):
        name = (opener.group(1) or "--").lower()
        inner_end, end = _extension_end(wikitext, opener, name, unclosed)
        kept.append(wikitext[position : end if name in _PROTECTING else opener.start()])
        if name in FORMULAS and inner_end > opener.end():
            kept.append(f"{_PLACE}{len(formulas)}{_PLACE}")
            formulas.append(wikitext[opener.end() : inner_end])
        position = end
    kept.append(wikitext[position:])
    return "".join(kept), formulas


def put_formulas(text: str, formulas: list[str], keep: bool) -> str:
    """Fill the places of formulas with their TeX source between dollar signs, or with nothing."""
    if _PLACE not in text:
        return text

    def source(place: re.Match[str]) -> str:
        return f"${' '.join(formulas[int(place.group(1))].split())}$" if keep else ""

    return _PLACES.sub(source, text)


def _extension_end(wikitext: str, opener: re.Match[str], name: str, unclosed: set[str]) -> tuple[int, int]:
    """Where the content of a tag ends, and where its closing tag does."""
    if opener.group().endswith("/>") or name in unclosed:
        return opener.end(), opener.end()
    closer = _closer(name).search(wikitext, opener.end())
    if closer is None:
        unclosed.add(name)
        return opener.end(), opener.end()
    return closer.start(), closer.end()


def _closer(name: str) -> re.Pattern[str]:
    return re.compile("-->" if name == "--" else rf"</{name}\s{{0,10}}>", re.IGNORECASE)
