"""Wikitext to plain text: what a reader of the page sees as running text, and its headings.

MediaWiki takes extension tags (references, formulas, galleries) out of a page before it parses anything else,
each up to the first closing tag. The same is done here, which also halves what the parser has to read; the
rest (templates, links, tables, headings) is parsed by mwparserfromhell and rendered by node type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.parser import ParserError

from data_prep.sources.text import clean_text

HIDDEN_NAMESPACES = frozenset({-2, 6, 14})
"""Numbers of the media, file and category namespaces, in every wiki."""


@dataclass(frozen=True, slots=True)
class LinkRules:
    """Which links of a wiki show nothing in running text."""

    hidden_namespaces: frozenset[str] = frozenset({"file", "image", "media", "category"})
    """Lower-case names of the file, media and category namespaces. The English ones work in every wiki."""

    def extended(self, names: Iterable[str]) -> LinkRules:
        return LinkRules(self.hidden_namespaces | {_namespace_key(name) for name in names})


ENGLISH_LINKS = LinkRules()


class WikitextError(ValueError):
    """The markup of a page cannot be parsed."""


def plain_text(wikitext: str, rules: LinkRules) -> str:
    """The running text of a page; empty when there is none (a page of only templates and tables).

    Raises:
        WikitextError: mwparserfromhell gave up on the page.
    """
    source = drop_extensions(_STYLE.sub("", wikitext))
    try:
        code = mwparserfromhell.parse(source, skip_style_tags=True)
        rendered = _render(code, rules)
    except (ParserError, RecursionError, SystemError) as error:
        raise WikitextError(f"its wikitext cannot be parsed: {error}") from error
    return clean_text(_drop_empty_sections(_tidy(rendered, rules)))


# -- extension tags -----------------------------------------------------------------------------------------

_DROPPED_EXTENSIONS = frozenset(
    {
        "ref",
        "references",
        "math",
        "chem",
        "ce",
        "score",
        "hiero",
        "graph",
        "timeline",
        "syntaxhighlight",
        "source",
    }
    | {"gallery", "imagemap", "mapframe", "maplink", "inputbox", "categorytree", "charinsert", "indicator"}
    | {"templatedata", "templatestyles", "section"}
)
_OPENERS = re.compile(
    r"<!--|<(nowiki|pre|" + "|".join(sorted(_DROPPED_EXTENSIONS)) + r")(?:\s[^<>]*|/)?>", re.IGNORECASE
)
_STYLE = re.compile("'{2,5}|__[^\\W\\d_]{3,40}__")
"""Bold and italic quotes, and behaviour switches such as `__NOTOC__` in any language."""


def drop_extensions(wikitext: str) -> str:
    """Remove comments and dropped extension tags with their content; `nowiki` and `pre` protect theirs.

    Linear in the length of the text, however many tags are left open: a tag that is never closed is looked
    for once.
    """
    kept: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while opener := _OPENERS.search(wikitext, position):
        name = (opener.group(1) or "--").lower()
        end = _extension_end(wikitext, opener, name, unclosed)
        protects = name in ("nowiki", "pre")
        kept.append(wikitext[position : end if protects else opener.start()])
        position = end
    kept.append(wikitext[position:])
    return "".join(kept)


def _extension_end(wikitext: str, opener: re.Match[str], name: str, unclosed: set[str]) -> int:
    if opener.group().endswith("/>") or name in unclosed:
        return opener.end()
    closer = _closer(name).search(wikitext, opener.end())
    if closer is None:
        unclosed.add(name)
        return opener.end()
    return closer.end()


def _closer(name: str) -> re.Pattern[str]:
    return re.compile("-->" if name == "--" else rf"</{name}\s{{0,10}}>", re.IGNORECASE)


# -- parsed nodes -------------------------------------------------------------------------------------------

_DROPPED_TAGS = _DROPPED_EXTENSIONS | {"table", "includeonly", "style", "script"}
_LINE_TAGS = frozenset({"br", "hr"})
_HEADING = "\x02"
"""Starts a heading's line, before its level, until empty sections are dropped. No control character can come
out of an XML file."""
_INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|be-[a-z-]+|roa-[a-z-]+|[a-z]{3}-[a-z]{3,4}):\S")
_MEDIA_FILE = re.compile(
    r"^[^:|\]]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|opus|flac|mp3|wav|midi?|web[mp]|pdf|djvu)\s*$",
    re.IGNORECASE,
)


def _render(code: Any, rules: LinkRules) -> str:
    return "".join([_RENDERERS[type(node)](node, rules) for node in code.nodes])


def _render_text(node: Any, rules: LinkRules) -> str:
    return node.value


def _render_nothing(node: Any, rules: LinkRules) -> str:
    return ""


def _render_entity(node: Any, rules: LinkRules) -> str:
    try:
        character = node.normalize()
    except (ValueError, OverflowError):
        return ""
    return " " if character == "\u00a0" else character.replace(_HEADING, "")


def _render_argument(node: Any, rules: LinkRules) -> str:
    return "" if node.default is None else _render(node.default, rules)


def _render_heading(node: Any, rules: LinkRules) -> str:
    title = " ".join(_render(node.title, rules).split())
    return f"\n{_HEADING}{node.level}{title}\n"


def _render_external_link(node: Any, rules: LinkRules) -> str:
    if not node.brackets:
        return str(node.url)
    return "" if node.title is None else _render(node.title, rules)


def _render_wikilink(node: Any, rules: LinkRules) -> str:
    target = str(node.title).strip()
    if _is_hidden(target, rules) or (node.text is None and _INTERLANGUAGE.match(target)):
        return ""
    if node.text is not None:
        return _render(node.text, rules)
    return _render(node.title, rules).strip().removeprefix(":")


def _is_hidden(target: str, rules: LinkRules) -> bool:
    namespace, colon, _ = target.partition(":")
    if not colon or not namespace:
        return False
    return _namespace_key(namespace) in rules.hidden_namespaces or bool(_MEDIA_FILE.match(target))


def _namespace_key(name: str) -> str:
    return name.replace("_", " ").strip().lower()


def _render_tag(node: Any, rules: LinkRules) -> str:
    name = str(node.tag).strip().lower()
    if name in _DROPPED_TAGS:
        return ""
    if name in _LINE_TAGS:
        return "\n"
    return "" if node.contents is None else _render(node.contents, rules)


def _render_template(node: Any, rules: LinkRules) -> str:
    name = _namespace_key(str(node.name))
    if name.startswith("lang-"):
        return _parameter(node, 1, rules)
    show = _INLINE_TEMPLATES.get(name)
    return "" if show is None else show(node, rules)


def _parameter(node: Any, number: int, rules: LinkRules) -> str:
    name = str(number)
    return _render(node.get(name).value, rules).strip() if node.has(name) else ""


def _quantity(node: Any, rules: LinkRules) -> str:
    return f"{_parameter(node, 1, rules)} {_parameter(node, 2, rules)}".strip()


def _first(node: Any, rules: LinkRules) -> str:
    return _parameter(node, 1, rules)


def _second(node: Any, rules: LinkRules) -> str:
    return _parameter(node, 2, rules)


_INLINE_TEMPLATES: dict[str, Callable[[Any, LinkRules], str]] = {
    "convert": _quantity,
    "cvt": _quantity,
    "lang": _second,
    "transl": _second,
    "transliteration": _second,
    "nowrap": _first,
    "nobr": _first,
    "nobold": _first,
    "small": _first,
    "smaller": _first,
    "big": _first,
    "sic": _first,
    "abbr": _first,
    "angbr": _first,
    "as written": _first,
    "spaced ndash": lambda node, rules: " – ",
    "snd": lambda node, rules: " – ",
    "ndash": lambda node, rules: "–",
    "mdash": lambda node, rules: "—",
    "nbsp": lambda node, rules: " ",
    "'": lambda node, rules: "'",
}
"""Templates that stand for words of the sentence they are in; all others are furniture and are dropped."""

_RENDERERS: dict[type, Callable[[Any, LinkRules], str]] = {
    nodes.Argument: _render_argument,
    nodes.Comment: _render_nothing,
    nodes.ExternalLink: _render_external_link,
    nodes.Heading: _render_heading,
    nodes.HTMLEntity: _render_entity,
    nodes.Tag: _render_tag,
    nodes.Template: _render_template,
    nodes.Text: _render_text,
    nodes.Wikilink: _render_wikilink,
}


# -- what broken markup and dropped nodes leave behind ------------------------------------------------------

_STRAY_TAG = re.compile(
    r"</?(?:ref|references|br|hr|p|div|span|center|font|small|big|b|i|u|s|sub|sup|em|strong|table|tr|td|th|tt|"
    r"code|pre|nowiki|gallery|math|blockquote|poem|li|ul|ol|dl|dt|dd|noinclude|includeonly|onlyinclude|del|ins|"
    r"abbr|cite|dfn|var|kbd|samp|score|timeline|syntaxhighlight|source|section)(?:\s[^<>]*|/)?>",
    re.IGNORECASE,
)
_HOLLOW = re.compile(r"[ \t]?\([ \t,;:]*\)|\[[ \t]*\]")
_LEADING_SEPARATOR, _TRAILING_SEPARATOR = re.compile(r"\((?: ?[,;])+ ?"), re.compile(r"[ ,;]{1,8}\)")
_SPACES = re.compile(r"[ \t\u00a0]{2,}")
_BEFORE_COMMA = re.compile(r"(?<=\S) (?=[,;]\s)")
_LIST_MARKS = "*#:; \t"


def _tidy(text: str, rules: LinkRules) -> str:
    """Remove the markup that never was closed, and the punctuation that dropped nodes leave hollow."""
    text = strip_tags(text)
    text = "\n".join(_prose_lines(text, rules))
    for mark in ("[[", "]]", "{{", "}}"):
        text = text.replace(mark, "")
    text = _HOLLOW.sub("", _SPACES.sub(" ", text))
    text = _TRAILING_SEPARATOR.sub(")", _LEADING_SEPARATOR.sub("(", text))
    return _BEFORE_COMMA.sub("", text)


def strip_tags(text: str) -> str:
    """Remove the HTML and extension tags that MediaWiki knows, keeping what is between them."""
    return _STRAY_TAG.sub("", text) if "<" in text else text


def _prose_lines(text: str, rules: LinkRules) -> Iterable[str]:
    """Lines without those of a table that never was closed; list marks and half links removed."""
    in_table = False
    for line in text.split("\n"):
        line = line.strip().lstrip(_LIST_MARKS)
        if line.startswith(("{|", "|")) or (in_table and line.startswith("!")):
            in_table = not line.startswith("|}")
            continue
        in_table = in_table and not line
        yield _without_open_file_link(line, rules)


def _without_open_file_link(line: str, rules: LinkRules) -> str:
    """Cut a `[[File:...|thumb|...` that has no end, which the parser leaves as text."""
    start = line.find("[[")
    while start >= 0:
        if _is_hidden(line[start + 2 :].split("|", 1)[0], rules):
            return line[:start].rstrip()
        start = line.find("[[", start + 2)
    return line


def _drop_empty_sections(text: str) -> str:
    """Turn heading marks into plain lines, without those that have no text below them."""
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    for line in text.split("\n"):
        if line.startswith(_HEADING):
            level = int(line[1])
            pending = [heading for heading in pending if heading[0] < level]
            pending.append((level, line[2:].strip()))
            continue
        if line and pending:
            kept.append("")
            kept.extend(title for _, title in pending if title)
            pending = []
        if line or not pending:
            kept.append(line)
    return "\n".join(kept)
