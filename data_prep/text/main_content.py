"""The main content of a page: which element holds it, and which of that element's blocks are its text.

Blocks of plain text speak for the elements around them, links and scraps against them (as in Kohlschütter et al. 2010,
"Boilerplate Detection using Shallow Text Features", section 3, and in the reader modes of browsers); names such as
`comments` and `article-body` speak for or against what bears them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from data_prep.text.main_content_kernel import choose_element, without_asides
from data_prep.text.page_blocks import HEADINGS, PROSE, SENTENCE_ENDS, Block, Blocks

_MIN_ARTICLE = 250
"""Characters of plain text, without which a page is a list of links, a form or a notice."""
_MIN_ARTICLE_SHARE = 0.2
"""Of the plain text of its page."""
_MAX_LEFT_OUT, _MAX_LINKED = 0.02, 0.65
"""Shares of a page's text: what is left out for the names of elements, and what is in links. A page with more of either
has menus, and only some of its text counts."""
_SCRAP = 60
"""Characters; a line at an end of an article that is shorter and has no full stop is none of its text."""
_POINTER = re.compile(
    r"\W*(?:read (?:more|also|next|the full|the rest)|also (?:read|on|see)|see (?:also|more)|related|recommended|watch"
    r"|listen|more (?:on|from|about|stories)|lire aussi|[aà] lire|voir aussi|lies auch|lesen sie|mehr zum|lee también"
    r"|leer más|leia (?:mais|também)|leggi anche|baca juga|читайте также|share (?:this|on|via)|follow us|sign up"
    r"|subscribe|click here|advertisement|continue reading|story continues|photo|image|picture|credits?|foto|file photo"
    r"|фото|©|copyright)\b",
    re.IGNORECASE,
)
"""How lines begin that point elsewhere, or credit a picture."""
_MAX_POINTER = 140
_NOISE = re.compile(
    r"\W*(?:advert(?:isement)?s?|sponsored(?: content)?|loading|share(?: this.{0,30})?|tweet|pin it|print|e-?mail"
    r"|comments?|(?:story|article)? ?continues? (?:reading|after|below).{0,40}|credits?:.{0,80}"
    r"|image (?:copyright|caption|credit|source).{0,100}"
    r"|(?:file )?(?:photo|image|picture|foto)s?(?: credit| by| courtesy)?\W[^.!?]{0,90})\W*",
    re.IGNORECASE,
)
"""Whole lines that are none of a text, wherever they stand."""
_BYLINE = re.compile(
    r"(?:by|von|par|por|di|door|posted|published|updated|last modified|written)\b|.*\b(?:19|20)\d\d\b|.*\d\d:\d\d",
    re.IGNORECASE,
)
_MAX_OPENING, _MAX_TITLE = 3, 1000
"""Headings in a row before a text, and characters of a title that they are compared with."""
_HEAD_BLOCKS = 8
"""Blocks at the beginning of an article among which bylines and dates stand."""


def main_content(page: Blocks) -> str | None:
    """A page's article, without the headline; of a page without one, all its text if there is nothing else, and else
    None.

    A page has no article if it would be a small fraction of the page's text.
    """
    is_kept = without_asides(page.blocks, page.elements, PROSE)
    first, end = choose_element(page.blocks, page.elements, is_kept)
    least = max(_MIN_ARTICLE, _MIN_ARTICLE_SHARE * _prose_size(page.blocks))
    chosen = first + np.flatnonzero(is_kept[first:end])
    if _prose_size(page.blocks[chosen]) >= least:
        blocks = _without_scraps(page.take(chosen), page.title)
        if sum(block.plain for block in blocks if block.score > 0) >= least:
            return _render(blocks)
    return page.text if is_kept.all() and _is_bare(page) else None


def _is_bare(page: Blocks) -> bool:
    """Whether a page is hardly more than its text."""
    size, linked = page.blocks[:, 3:5].sum(axis=0)
    return page.left_out <= _MAX_LEFT_OUT * len(page.text) and linked <= _MAX_LINKED * size


def _prose_size(blocks: np.ndarray) -> int:
    """Characters of plain text in blocks that have enough of it."""
    return int(((blocks[:, 3] - blocks[:, 4]) * (blocks[:, 5] > 0)).sum())


def _without_scraps(blocks: list[Block], title: str) -> list[Block]:
    first, last = 0, len(blocks) - 1
    while first < last and _is_scrap(blocks[first]):
        first += 1
    while last > first and _is_scrap(blocks[last]):
        last -= 1
    for _ in range(_MAX_OPENING):
        if first > 0 and _opens_text(blocks[first - 1], title):
            first -= 1
    inner = blocks[first : last + 1]
    kept: list[Block] = []
    is_dropped = False  # the block that follows in the page
    for number in range(len(inner) - 1, -1, -1):
        block = inner[number]
        is_last = not kept or kept[-1].kind in HEADINGS
        is_dropped = (
            _is_pointer(block)
            or (block.size < _MAX_POINTER and _NOISE.fullmatch(block.text) is not None)
            or (number < _HEAD_BLOCKS and _is_byline(block))
            or (is_dropped and is_last and block.kind in HEADINGS)  # the heading of a list of links
            or (is_dropped and block.size < _SCRAP and _POINTER.match(block.text) is not None)
        )
        if not is_dropped:
            kept.append(block)
    return kept[::-1]


def _opens_text(block: Block, title: str) -> bool:
    """Whether a block before the text is a heading of its first section."""
    return (
        block.kind in HEADINGS
        and block.kind != "h1"
        and block.text.casefold() not in title[:_MAX_TITLE].casefold()
    )


def _is_scrap(block: Block) -> bool:
    """Whether a block at an end of an article is none of its text: a heading, links, a date, a name."""
    if block.kind == "pre":
        return False
    if block.kind in HEADINGS or block.plain < 15 or block.linked > 0.5 * block.size:
        return True
    if _POINTER.match(block.text) and block.size < _MAX_POINTER:
        return True
    if block.text[-1] in SENTENCE_ENDS and block.plain >= 25:
        return False
    return block.plain < _SCRAP and block.kind not in ("li", "tr")


def _is_pointer(block: Block) -> bool:
    """Whether a block is a link to elsewhere, or a list of them."""
    if block.linked > 0.6 * block.size:
        return True
    return (
        block.kind not in ("li", "pre", "tr")
        and block.size < _MAX_POINTER
        and block.linked > 0.3 * block.size
        and _POINTER.match(block.text) is not None
    )


def _is_byline(block: Block) -> bool:
    return (
        block.kind in ("", "p")
        and block.plain < _SCRAP
        and block.text[-1] not in SENTENCE_ENDS
        and _BYLINE.match(block.text) is not None
    )


def _render(blocks: Sequence[Block]) -> str:
    """Blocks as text: items of a list and rows of a table on lines of their own, all else parted by blank lines."""
    parts: list[str] = []
    previous = ""
    for block in blocks:
        if parts:
            parts.append("\n" if block.kind == previous and previous in ("li", "tr") else "\n\n")
        parts.append(block.text)
        previous = block.kind
    return "".join(parts)
