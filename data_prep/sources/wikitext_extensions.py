"""Extension tags of wikitext: references, formulas, code, galleries and the like.

MediaWiki takes them out of a page before it parses anything else, each up to the first closing tag, and puts what
they show in their places when all else is done. The same is done here, which also halves what the parser has to read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from data_prep.sources.wikitext_marks import EDGE, LINE_BREAK, PLACE

FORMULAS = frozenset({"math", "chem", "ce"})
DROPPED_EXTENSIONS = (
    {"ref", "references", "score", "hiero", "graph", "timeline", "gallery"}
    | {"imagemap", "mapframe", "maplink", "inputbox", "categorytree", "charinsert", "indicator", "section"}
    | {"templatedata", "templatestyles", "includeonly"}
)
_PLACES = re.compile(f"{PLACE}(\\d+){PLACE}")
_INNER_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>", re.IGNORECASE | re.DOTALL)
_INLINE = re.compile(r"\sinline\b|\senclose\s*=\s*[\"']?none", re.IGNORECASE)


def take_extensions(wikitext: str, *, keep_formulas: bool = True) -> tuple[str, list[str]]:
    """The page without comments and extension tags, and what those show that show text, in whose places marks are left.

    Linear in the length of the text, however many tags are left open: a tag that is never closed is looked for once,
    and what follows it is markup like any other.

    Args:
        keep_formulas: show formulas as their TeX source between dollar signs, or leave them out.
    """
    kept: list[str] = []
    protected: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while opener := _OPENERS.search(wikitext, position):
        name = (opener.group(1) or "--").lower()
        inner_end, end = _extension_end(wikitext, opener, name, unclosed)
        kept.append(wikitext[position : opener.start()])
        show = _SHOWN.get(name) if keep_formulas or name not in FORMULAS else None
        if show is not None and inner_end > opener.end():
            text, is_block = show(wikitext[opener.end() : inner_end], opener.group())
            kept.append(_place(len(protected), is_block))
            protected.append(text)
        elif name == "nowiki" and (brackets := _split_brackets(kept[-1], wikitext, end)):
            kept[-1] = kept[-1][: -len(brackets[0])]
            kept.append(_place(len(protected), False))
            protected.append("".join(brackets))
            end += len(brackets[1])
        elif name in _SHOWN or (name != "--" and wikitext.startswith("'", end)):
            kept.append(EDGE)
        position = end
    kept.append(wikitext[position:])
    return "".join(kept), protected


def put_protected(text: str, protected: list[str]) -> str:
    """Fill the places that `take_extensions` left."""
    return _PLACES.sub(lambda place: protected[int(place.group(1))], text) if PLACE in text else text


def _split_brackets(before: str, wikitext: str, end: int) -> tuple[str, str] | None:
    """The brackets on both sides of a `<nowiki/>` that keeps them from being markup: `[<nowiki/>[`, `{{<nowiki/>`."""
    sign = before[-1:]
    if sign not in ("[", "{"):
        return None
    if wikitext.startswith(sign, end):
        return sign, sign
    return (2 * sign, "") if before.endswith(2 * sign) else None


def _place(number: int, is_block: bool) -> str:
    mark = f"{PLACE}{number}{PLACE}"
    return f"{LINE_BREAK}{mark}{LINE_BREAK}" if is_block else mark


def _extension_end(wikitext: str, opener: re.Match[str], name: str, unclosed: set[str]) -> tuple[int, int]:
    """Where the content of a tag ends, and where its closing tag does."""
    if opener.group().endswith("/>") or name in unclosed:
        return opener.end(), opener.end()
    closer = _closer(name).search(wikitext, opener.end())
    if closer is None and name == "--":
        return len(wikitext), len(wikitext)
    if closer is None:
        unclosed.add(name)
        return opener.end(), opener.end()
    return closer.start(), closer.end()


def _closer(name: str) -> re.Pattern[str]:
    return re.compile("-->" if name == "--" else rf"</{name}\s{{0,10}}>", re.IGNORECASE)


# -- what tags show, and whether on lines of their own ---------------------------------------------------------------


def _formula(inner: str, opener: str) -> tuple[str, bool]:
    return f"${' '.join(inner.split())}$", False


def _nowiki(inner: str, opener: str) -> tuple[str, bool]:
    """Markup is text here, entities are still entities."""
    return _unescaped(inner), False


def _preformatted(inner: str, opener: str) -> tuple[str, bool]:
    return _unescaped(_INNER_NOWIKI.sub(r"\1", inner)).strip("\n"), True


def _code(inner: str, opener: str) -> tuple[str, bool]:
    is_inline = _INLINE.search(opener) is not None
    return (inner.strip() if is_inline else inner.strip("\n")), not is_inline


_ENTITY = re.compile(r"&(?:#\d{1,8}|#[xX][0-9A-Fa-f]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});")
"""Without the semicolon, as in `?a=1&copy=2`, it is none."""


def _unescaped(text: str) -> str:
    if "&" not in text:
        return text
    text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    return text.replace("\u00a0", " ").replace("\u00ad", "")


_SHOWN: Mapping[str, Callable[[str, str], tuple[str, bool]]] = MappingProxyType(
    {
        **dict.fromkeys(FORMULAS, _formula),
        "nowiki": _nowiki,
        "pre": _preformatted,
        "syntaxhighlight": _code,
        "source": _code,
    }
)
"""By name of a tag, (text, whether it stands on lines of its own) from what it holds and its opening tag."""
_OPENERS = re.compile(
    r"<!--|<(" + "|".join(sorted({*_SHOWN, *DROPPED_EXTENSIONS})) + r")(?:\s[^<>]*|/)?>", re.IGNORECASE
)
