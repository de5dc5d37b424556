"""The main content of a page: which element holds it, and which of that element's blocks are its text.

The method, step by step:

1. `page_scan.py` cuts the page, as a parser of HTML has repaired it, into texts and tags, without those that change
   nothing.
2. `page_roles.py` gives elements a role by their tag, their classes and id, and machine-readable marks: an article's
   text, a detail of it (byline, caption), an aside (navigation, advertisements), by others (comments, related
   articles), hidden.
3. `page_blocks.py` makes blocks of text between which lines break, and scores each: its characters of plain text, less
   a price for every block and twice the characters in links. Plain text counts for the elements around it,
   links and scraps against them (as in Kohlschütter et al. 2010, "Boilerplate Detection using Shallow Text
   Features", section 3, and in the reader modes of browsers).
4. `without_asides` drops the elements whose role says so, unless they hold too large a share of the page's prose.
5. `choose_element` takes the element whose remaining blocks have the largest sum of scores; a name for an article's
   text counts half as much again.
6. `_without_scraps` takes headlines, bylines, pointers elsewhere and credits off the chosen blocks' ends.

A page whose best element has little text, or a small share of the page's, has no article.

Arrays are those of `page_blocks.Blocks`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from data_prep.text.page_blocks import HEADINGS, SENTENCE_ENDS, Block, Blocks
from data_prep.text.page_roles import Role
from data_prep.text.page_scan import HEADER, KINDS, LANDMARK, PROSE

_ROW, _PRE, _FIRST_HEADING = map(KINDS.index, ("tr", "pre", "h1"))
_MAX_SHARES = {Role.DETAIL: 0.2, Role.ASIDE: 0.5, Role.OTHERS: 0.0, Role.HIDDEN: 0.0}
"""By role, the share of a page's prose that elements of one name may hold and still be dropped for their name."""
_MAX_DETAIL = 1500
"""Characters of prose in a detail at most; a longer one is more than that."""
_ENOUGH = 250
"""Characters of prose outside of comments that make a page an article with comments, and not a page of comments."""
_ENOUGH_BODY = 150
"""The limit outside of a large aside, in elements that are named for an article's text."""
_BODY_WEIGHT, _LANDMARK_WEIGHT = 1.5, 1.1
"""Factors of the scores of elements that say what they hold."""
_MIN_SHARE = 0.7
"""Share of a page's plain text that an element without a telling name must have: else the page is no article."""


def without_asides(page: Blocks) -> np.ndarray:
    """Whether each block is outside of elements that are dropped for their names: [blocks] bool."""
    blocks = page.blocks
    is_prose = (blocks["score"] > 0) & (blocks["size"] - blocks["linked"] >= PROSE)
    prose = np.where(is_prose, blocks["score"], 0)
    in_body = np.zeros(len(blocks), dtype=bool)
    for first, end in page.bounds(Role.BODY):
        in_body[first:end] = True
    sums, in_bodies = _sums(prose).tolist(), _sums(prose * in_body).tolist()
    # The innermost of the elements that are named for an article's text and have most prose.
    largest = max(
        reversed(page.bounds(Role.BODY)), key=lambda bounds: sums[bounds[1]] - sums[bounds[0]], default=(0, 0)
    )
    elements = page.elements
    named = elements[(elements["role"] >= Role.DETAIL) & (elements["first"] < elements["end"])].tolist()
    alike: dict[int, int] = defaultdict(int)
    for key, _, first, end, _ in named:
        alike[key] += sums[end] - sums[first]
    # The prose of the page that is neither by other people or of other articles, nor in small asides.
    own, done = sums[-1], 0
    for key, role, first, end, _ in named:
        is_large = role == Role.ASIDE and alike[key] > _MAX_SHARES[Role.ASIDE] * sums[-1]
        if first >= done and role != Role.DETAIL and not is_large:
            own, done = own - (sums[end] - sums[first]), end
    # Tables and code in figures, and the headings of sections, are no details.
    is_substance = (blocks["kind"] == _ROW) | (blocks["kind"] == _PRE)
    is_kept = np.ones(len(blocks), dtype=bool)
    left, done = sums[-1], 0
    for key, role, first, end, value in named:
        if first < done:
            continue
        inside = sums[end] - sums[first]
        is_small = alike[key] <= _MAX_SHARES[role] * left
        if inside > 0.5 * sums[-1] and first <= largest[0] and largest[1] <= end:
            continue  # it holds the article, whatever its name
        if role >= Role.OTHERS:
            is_dropped = not inside or own >= _ENOUGH
        elif role == Role.DETAIL:
            is_dropped = is_small and inside <= _MAX_DETAIL
        else:
            outside = in_bodies[-1] - (in_bodies[end] - in_bodies[first])
            is_dropped = is_small or outside > max(_ENOUGH_BODY, 0.5 * inside)
        if is_dropped:
            is_kept[first:end] = role == Role.DETAIL and is_substance[first:end]
            if role == Role.DETAIL and value & HEADER:
                is_kept[first:end] |= blocks["kind"][first:end] >= _FIRST_HEADING
            left, done = left - inside, end
    return is_kept


def choose_element(page: Blocks, is_kept: np.ndarray) -> tuple[int, int]:
    """The blocks of the element that has most plain text beside least else; the whole page, if it has too little."""
    blocks, elements = page.blocks, page.elements
    kept = np.where(is_kept, blocks["score"], 0)
    sums, plain = _sums(kept), _sums(np.where(kept > 0, blocks["size"] - blocks["linked"], 0))
    first, end, is_body = 0, len(blocks), False
    if len(elements):
        is_named = elements["role"] == Role.BODY
        scores = sums[elements["end"]] - sums[elements["first"]]
        weights = np.where(is_named, _BODY_WEIGHT, 1.0) * np.where(
            elements["value"] & LANDMARK, _LANDMARK_WEIGHT, 1.0
        )
        weighted = scores * weights
        best = len(elements) - 1 - int(weighted[::-1].argmax())
        if weighted[best] > 0:
            first, end, is_body = (
                int(elements["first"][best]),
                int(elements["end"][best]),
                bool(is_named[best]),
            )
    # The innermost element within that is named for the article's text and has most of it.
    inner, least = (first, end), 0.7 * (sums[end] - sums[first])
    for own_first, own_end in page.bounds(Role.BODY):
        amount = sums[own_end] - sums[own_first]
        if first <= own_first and own_end <= end and amount > 0 and amount >= least:
            inner, is_body, least = (own_first, own_end), True, 0.9 * amount
    if not is_body and plain[inner[1]] - plain[inner[0]] < _MIN_SHARE * plain[-1]:
        return 0, len(blocks)
    return inner


def _sums(values: np.ndarray) -> np.ndarray:
    """[values + 1] int64: the sum of all values before each, and of all."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


# -- the article ---------------------------------------------------------------------------------------------

_MIN_ARTICLE = 250
"""Characters of plain text, without which a page is a list of links, a form or a notice."""
_MIN_ARTICLE_SHARE = 0.2
"""Least share of the plain text of its page."""
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
"""Whole lines that are never part of a text."""
_BYLINE = re.compile(
    r"(?:by|von|par|por|di|door|posted|published|updated|last modified|written)\b|.*\b(?:19|20)\d\d\b|.*\d\d:\d\d",
    re.IGNORECASE,
)
_MAX_OPENING, _MAX_TITLE = 3, 1000
"""Headings in a row before a text, and characters of a title that they are compared with."""
_HEAD_BLOCKS = 8
"""Blocks at the beginning of an article that may be bylines and dates."""


def main_content(page: Blocks) -> str | None:
    """A page's article, without the headline; of a page without one, all its text if there is nothing else, and else
    None.

    A page has no article if it would be a small fraction of the page's text.
    """
    is_kept = without_asides(page)
    first, end = choose_element(page, is_kept)
    least = max(_MIN_ARTICLE, _MIN_ARTICLE_SHARE * _prose_size(page.blocks))
    chosen = first + np.flatnonzero(is_kept[first:end])
    if _prose_size(page.blocks[chosen]) >= least:
        blocks = _without_scraps(page.take(chosen), page.title)
        if sum(block.plain for block in blocks if block.score > 0) >= least:
            return _render(blocks)
    size, linked = page.blocks["size"].sum(), page.blocks["linked"].sum()
    is_bare = page.left_out <= _MAX_LEFT_OUT * len(page.text) and linked <= _MAX_LINKED * size
    return page.text if is_kept.all() and is_bare else None


def _prose_size(blocks: np.ndarray) -> int:
    """Characters of plain text in blocks that have enough of it."""
    return int(((blocks["size"] - blocks["linked"]) * (blocks["score"] > 0)).sum())


def _without_scraps(blocks: list[Block], title: str) -> list[Block]:
    first, last = 0, len(blocks) - 1
    while first < last and _is_scrap(blocks[first]):
        first += 1
    while last > first and _is_scrap(blocks[last]):
        last -= 1
    for before in blocks[:first][: -_MAX_OPENING - 1 : -1]:
        # The headings of the text's first section.
        is_heading = before.kind in HEADINGS and before.kind != "h1"
        if not is_heading or before.text.casefold() in title[:_MAX_TITLE].casefold():
            break
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
            or (
                number < _HEAD_BLOCKS
                and block.kind in ("", "p")
                and block.plain < _SCRAP
                and block.text[-1] not in SENTENCE_ENDS
                and _BYLINE.match(block.text) is not None
            )
            or (is_dropped and is_last and block.kind in HEADINGS)  # the heading of a list of links
            or (is_dropped and block.size < _SCRAP and _POINTER.match(block.text) is not None)
        )
        if not is_dropped:
            kept.append(block)
    return kept[::-1]


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
