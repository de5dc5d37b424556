"""Wikitext to plain text: what a reader of the page sees as running text, and its headings.

Extension tags are taken out first. Templates, tables and links that hold no other markup are rendered without a parser,
from the inside out: they are most of what it would make objects of, and a page takes a third of the time. The rest
(nested templates and links, headings, HTML, entities) is parsed by mwparserfromhell and rendered by node type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.parser import ParserError

from data_prep.text import UnreadableError, clean_text
from data_prep.text.wiki_page import LinkRules, Page, Values, template_key, title_text
from data_prep.text.wiki_templates import shown_by
from data_prep.text.wikitext_source import (
    APOSTROPHE,
    BLOCK,
    COLON,
    DROPPED_EXTENSIONS,
    EDGE,
    ESCAPED,
    FORMULAS,
    HEADING,
    LESS_THAN,
    LINE_BREAK,
    PLACE,
    SHOWN,
    SPACE,
    drop_quotes,
    drop_quotes_of_line,
    literal,
    prepare_markup,
    put_protected,
    repair_punctuation,
    show_first_variants,
    take_extensions,
)

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Context:
    """The rules of the wiki, the page, and what has been left out of its sentences."""

    rules: LinkRules
    page: Page
    dropped: Counter[str] = field(default_factory=Counter)
    """Templates inside lines of text that show nothing here, by `template_key`."""

    def count_dropped(self, name: str) -> None:
        """Note that a template was left out of a line of text."""
        self.dropped[template_key(name)[:_LONGEST_NAME]] += 1


# -- markup that needs no parser -----------------------------------------------------------------------------

_MOST_PASSES = 10
"""Markup that is nested deeper is left to the parser."""
_TEMPLATE = re.compile(r"(?<!\{)\{\{(?!\{)([^{}|\[\]<>]+)((?:\|[^{}]*)?)\}\}(?!\})")
_LINK = re.compile(r"\[\[([^\[\]{}|<>\n]+)(?:\|([^\[\]{}|<>]*))?\]\](?!\])")
_TERM = re.compile(r"[*#:]*;")
_LONGEST_TERM = 1000
_TABLE_INDENT = " \t:*"
_LINE_ENDS = "\n|=*#:;{}"
"""Also where parameters of another template begin and end, and marks of lists."""


def reduce_markup(wikitext: str, context: Context) -> str:
    """The page without furniture templates, tables and simple links, as far as they are well-formed."""

    def link(found: re.Match[str]) -> str:
        target, text = found.groups()
        if context.rules.is_furniture(target.strip(), text is not None):
            return ""
        # `[[Title (kind)|]]` shows its text as it was saved; an empty one shows nothing.
        shown = literal(title_text(target) if text is None else drop_quotes_of_line(text))
        if ":" in shown:
            line = found.string.rfind("\n", max(found.start() - _LONGEST_TERM, 0), found.start()) + 1
            shown = shown.replace(":", COLON) if _TERM.match(found.string, line) else shown
        return shown + _edge(found)

    def template(found: re.Match[str]) -> str:
        name = found.group(1)
        if shown_by(name, context.page) is not None:
            return found.group()
        # A template in a sentence has text before or after it on the same line.
        source, start, end = found.string, found.start(), found.end()
        beside = (source[start - 1 : start], source[end : end + 1])
        if "\n" not in found.group() and any(sign and sign not in _LINE_ENDS for sign in beside):
            context.count_dropped(name)
        return _edge(found)

    for _ in range(_MOST_PASSES):
        before = len(wikitext)
        wikitext = _LINK.sub(link, _TEMPLATE.sub(template, wikitext))
        if len(wikitext) == before:
            break
    return _drop_tables(wikitext)


def _edge(found: re.Match[str]) -> str:
    """Separates the apostrophes before and after a piece of markup."""
    return EDGE if found.string.startswith("'", found.end()) else ""


def _drop_tables(wikitext: str) -> str:
    if "{|" not in wikitext:
        return wikitext
    kept: list[str] = []
    open_tables: list[int] = []
    for line in wikitext.split("\n"):
        start = line.lstrip(_TABLE_INDENT)
        if start.startswith("{|"):
            open_tables.append(len(kept))
        elif open_tables and start.startswith("|}") and not start.startswith("|}}"):
            del kept[open_tables.pop() :]
            line = start[2:]
        kept.append(line)
    return "\n".join(kept)


# -- the whole page ------------------------------------------------------------------------------------------


def plain_text(
    wikitext: str,
    rules: LinkRules,
    *,
    page: Page = Page(),
    keep_formulas: bool = False,
    dropped: Counter[str] | None = None,
) -> str:
    """The running text of a page; empty when there is none (a page of only templates and tables).

    Args:
        page: what templates and magic words know of it.
        dropped: counts the templates that are left out of lines of text, by name.
        keep_formulas: show formulas as their TeX source between dollar signs, or leave them out.

    Raises:
        UnreadableError: mwparserfromhell gave up on the page.
    """
    source, protected = take_extensions(wikitext, keep_formulas=keep_formulas)
    context = Context(rules, page, Counter() if dropped is None else dropped)
    source = reduce_markup(prepare_markup(source), context)
    try:
        code = mwparserfromhell.parse(source, skip_style_tags=True)
        rendered = _render(code, context)
    except (ParserError, RecursionError, SystemError) as error:
        raise UnreadableError(f"its wikitext cannot be parsed: {error}") from error
    rendered = drop_quotes(rendered)
    for mark in (APOSTROPHE, COLON, EDGE, LINE_BREAK, SPACE):
        rendered = rendered.replace(mark, SHOWN[mark])
    # Closing brackets are text where more of their opening ones are protected.
    pieces = "\n".join(protected)
    brackets = {
        bracket
        for opener, closer in (("[[", "]]"), ("{{", "}}"))
        for bracket in ((opener,) if pieces.count(opener) > pieces.count(closer) else (opener, closer))
    }
    text = drop_empty_sections(_tidy(rendered, rules, brackets))
    return clean_text(put_protected(text, protected))


# -- parsed nodes -------------------------------------------------------------------------------------------

_DROPPED_TAGS = DROPPED_EXTENSIONS | FORMULAS | {"table", "includeonly", "style", "script"}
_LINE_TAGS = frozenset({"br", "hr"})
_BLOCK_TAGS = frozenset(
    {"div", "blockquote", "center", "ul", "ol", "dl", "li", "dt", "dd", "caption", "tr", "td", "th"}
)
_HEADING_TAGS = {f"h{level}": level for level in range(1, 7)}


def _render(code: Any, context: Context) -> str:
    """The page's text, still with bold and italic quotes."""
    parts = [_RENDERERS[type(node)](node, context) for node in code.nodes]
    # Apostrophes on both sides of a tag or template are no run.
    return "".join([EDGE + part if part.startswith("'") and at else part for at, part in enumerate(parts)])


_ENTITY_TEXTS: dict[str, str] = {
    **dict.fromkeys((HEADING, PLACE, *SHOWN), ""),
    "\u00a0": SPACE,
    "\u00ad": "",
    "<": LESS_THAN,
    "'": APOSTROPHE,
    **{sign: ESCAPED + sign for sign in "[]{}|*#:;!-"},
}


def _render_entity(node: Any, context: Context) -> str:
    try:
        character = str(node.normalize())
    except (ValueError, OverflowError):
        return ""
    return _ENTITY_TEXTS.get(character, character)


def _heading(title: Any, level: int, context: Context) -> str:
    shown = _render(title, context).replace(LINE_BREAK, " ").replace(BLOCK, " ")
    return f"\n{HEADING}{level}{' '.join(shown.split())}\n"


def _render_external_link(node: Any, context: Context) -> str:
    if not node.brackets:
        return _render(node.url, context)
    return "" if node.title is None else _render(node.title, context)


def _render_wikilink(node: Any, context: Context) -> str:
    if context.rules.is_furniture(str(node.title).strip(), node.text is not None):
        return ""
    # As MediaWiki does: quotes in a link's text end with it, and a title has none.
    if node.text is not None:
        return literal(drop_quotes_of_line(_render(node.text, context)))
    return literal(title_text(_render(node.title, context)))


def _render_tag(node: Any, context: Context) -> str:
    name = str(node.tag).strip().lower()
    if name in _DROPPED_TAGS:
        return ""
    if name in _LINE_TAGS:
        return LINE_BREAK
    if node.wiki_markup is not None:
        return BLOCK if node.wiki_markup == ":" else ""
    if name in _HEADING_TAGS and node.contents is not None:
        return _heading(node.contents, _HEADING_TAGS[name], context)
    border = 2 * LINE_BREAK if name == "p" else BLOCK if name in _BLOCK_TAGS else ""
    return border + ("" if node.contents is None else _render(node.contents, context)) + border


def _render_template(node: Any, context: Context) -> str:
    name = _render(node.name, context) if "{" in str(node.name) else str(node.name)
    show = shown_by(name, context.page)
    if show is not None:
        return show(
            Values({str(each.name).strip(): _render(each.value, context).strip() for each in node.params})
        )
    if "\n" not in str(node):
        context.count_dropped(name)
    return ""


_RENDERERS: dict[type, Callable[[Any, Context], str]] = {
    nodes.Argument: lambda node, context: "" if node.default is None else _render(node.default, context),
    nodes.Comment: lambda node, context: "",
    nodes.ExternalLink: _render_external_link,
    nodes.Heading: lambda node, context: _heading(node.title, node.level, context),
    nodes.HTMLEntity: _render_entity,
    nodes.Tag: _render_tag,
    nodes.Template: _render_template,
    nodes.Text: lambda node, context: node.value,
    nodes.Wikilink: _render_wikilink,
}


# -- the remains of broken markup and dropped nodes ---------------------------------------------------------

_STRAY_TAG = re.compile(
    r"</?(ref|references|br|hr|p|div|span|center|font|small|big|b|i|u|s|sub|sup|em|strong|table|tr|td|th|tt|"
    r"code|pre|nowiki|gallery|math|blockquote|poem|li|ul|ol|dl|dt|dd|noinclude|includeonly|onlyinclude|del|ins|"
    r"abbr|cite|dfn|var|kbd|samp|score|timeline|syntaxhighlight|source|section|caption|h[1-6])(?:[\s/][^<>]*)?>",
    re.IGNORECASE,
)
_GLUING = re.compile(r"(?<=\w)(?:\[\[|\{\{)(?=\w)")
_WORD = re.compile(r"\w")
_LIST_MARKS = "*#:; \t"


def _tidy(text: str, rules: LinkRules, brackets: Iterable[str]) -> str:
    """Remove the markup that never was closed, and the punctuation that dropped nodes leave hollow.

    Args:
        brackets: those that are markup.
    """
    text = show_first_variants(strip_tags(text)).replace(LESS_THAN, SHOWN[LESS_THAN])
    text = "\n".join(_prose_lines(text, rules))
    if "[[" in brackets and "{{" in brackets:
        text = _GLUING.sub(" ", text)
    for mark in sorted(brackets):
        text = text.replace(mark, "")
    return repair_punctuation(text)


def strip_tags(text: str) -> str:
    """Remove the HTML and extension tags that MediaWiki knows, keeping the text between them; blocks end lines."""
    if "<" in text:
        text = _STRAY_TAG.sub(_border, text)
    if BLOCK not in text:
        return text
    shown: list[str] = []
    for line in text.split("\n"):
        pieces = line.split(BLOCK)
        kept = [piece for piece in pieces if piece.strip(_LIST_MARKS)] if len(pieces) > 1 else pieces
        shown += kept or [""]
    return "\n".join(shown)


def _border(tag: re.Match[str]) -> str:
    name = tag.group(1).lower()
    if name in _LINE_TAGS:
        return "\n"
    return "\n\n" if name == "p" else BLOCK if name in _BLOCK_TAGS or name in _HEADING_TAGS else ""


def _prose_lines(text: str, rules: LinkRules) -> Iterable[str]:
    """Drop the lines of a table that never was closed, list marks and half links."""
    in_table = False
    for line in text.split("\n"):
        line = line.strip().lstrip(_LIST_MARKS)
        if line.startswith(("{|", "|")) or (in_table and line.startswith("!")):
            in_table = not line.startswith("|}")
            continue
        in_table = in_table and not line
        if line and not _WORD.search(line):
            continue  # the comma after a formula, the bar between two pictures
        yield _without_open_file_link(line, rules)


def _without_open_file_link(line: str, rules: LinkRules) -> str:
    """Cut a `[[File:...|thumb|...` that has no end, which the parser leaves as text."""
    start = line.find("[[")
    while start >= 0:
        if rules.hide(line[start + 2 :].split("|", 1)[0]):
            return line[:start].rstrip()
        start = line.find("[[", start + 2)
    return line


def drop_empty_sections(text: str, mark: str = HEADING) -> str:
    """Turn heading marks into plain lines, without those that have no text below them.

    Args:
        mark: begins the line of a heading, before its level.
    """
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    for line in text.split("\n"):
        if line.startswith(mark):
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
