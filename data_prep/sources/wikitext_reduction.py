"""What of a page's markup can be rendered without a parser: templates, tables and links that hold no other markup.

They are most of what a parser would make objects of. Rendered from the inside out, they leave it a small rest, and
a page takes a third of the time.
"""

from __future__ import annotations

import re

from data_prep.sources.wikipedia_links import title_text
from data_prep.sources.wikitext_context import Context
from data_prep.sources.wikitext_marks import COLON, EDGE, literal
from data_prep.sources.wikitext_quotes import drop_quotes_of_line

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
        if context.shown_by(name) is not None:
            return found.group()
        if _is_in_sentence(found):
            context.count_dropped(name)
        return _edge(found)

    for _ in range(_MOST_PASSES):
        before = len(wikitext)
        wikitext = _LINK.sub(link, _TEMPLATE.sub(template, wikitext))
        if len(wikitext) == before:
            break
    return _drop_tables(wikitext)


def _is_in_sentence(found: re.Match[str]) -> bool:
    """Whether a template stands on one line, and that line goes on before or behind it."""
    line = (found.string[found.start() - 1 : found.start()], found.string[found.end() : found.end() + 1])
    return "\n" not in found.group() and any(sign and sign not in _LINE_ENDS for sign in line)


def _edge(found: re.Match[str]) -> str:
    """Separates the apostrophes before and behind a piece of markup."""
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
