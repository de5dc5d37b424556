"""Wikitext in the form that mwparserfromhell needs to read it as MediaWiki does.

Extension tags have been taken out by then.
"""

from __future__ import annotations

import re
from html.entities import html5, name2codepoint

from data_prep.sources.wikitext_variants import show_first_variants

_SWITCH = re.compile(r"__([^\W\d_]{3,40})__")
"""Behaviour switches such as `__NOTOC__` in any language."""
_SWITCHES = frozenset(
    {
        "notoc",
        "forcetoc",
        "toc",
        "noeditsection",
        "notitleconvert",
        "notc",
        "nocontentconvert",
        "nocc",
        "nogallery",
    }
    | {
        "index",
        "noindex",
        "hiddencat",
        "expectunusedcategory",
        "staticredirect",
        "newsectionlink",
        "disambig",
    }
    | {"nonewsectionlink", "archivedtalk", "notalk", "noglobal"}
)
"""Those that work in small letters; others in small letters are words, such as Python's `__init__`."""
_TRANSCLUSION = re.compile(r"</?(?:noinclude|onlyinclude)\s{0,10}/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(\w{2,32});")
_ALIASES = {"רלמ": "\u200f", "رلم": "\u200f"}
_PROTOCOL = r"(?:(?:https?|ftps?|news|ircs?|gopher|mailto|sftp|tel):|//)"
_SPACE_IN_LINK = re.compile(
    rf"(\[{_PROTOCOL}[^\s\[\]<>\"]*)[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]", re.IGNORECASE
)
_DOUBLE_BRACKET = re.compile(r"\[\[(?=(?:https?:|ftp:)?//)", re.IGNORECASE)
_BRACKETS_IN_HOST = re.compile(r"(\[(?:(?:https?|ftp):)?//)\[[0-9A-F:.]{2,45}\]", re.IGNORECASE)


def prepare_markup(wikitext: str) -> str:
    """The page without switches, marks of transclusion and language conversion; with entities and addresses that the
    parser knows."""
    if "__" in wikitext:
        wikitext = _SWITCH.sub(_switch, wikitext)
    if "include" in wikitext.lower():
        wikitext = _TRANSCLUSION.sub("", wikitext)
    if "&" in wikitext:
        wikitext = _ENTITY.sub(_entity, wikitext)
    # The address of a link in brackets is not shown, if it has a text.
    wikitext = _BRACKETS_IN_HOST.sub(r"\1host", wikitext)
    wikitext = _SPACE_IN_LINK.sub(r"\1 ", wikitext)
    wikitext = _DOUBLE_BRACKET.sub("&#91;[", wikitext)
    return show_first_variants(wikitext)


def _switch(found: re.Match[str]) -> str:
    name = found.group(1)
    return found.group() if name.isascii() and name.islower() and name not in _SWITCHES else ""


def _entity(found: re.Match[str]) -> str:
    """By number, where only HTML 5 knows the name."""
    name = found.group(1)
    characters = _ALIASES.get(name) or html5.get(f"{name};")
    if name in name2codepoint or characters is None:
        return found.group()
    return "".join(f"&#{ord(character)};" for character in characters)
