"""The main content of a page: which element holds it, and which of that element's blocks are its text.

Blocks of plain text speak for the elements around them, links and scraps against them (as in Kohlschütter et al. 2010,
"Boilerplate Detection using Shallow Text Features", section 3, and in the reader modes of browsers); names such as
`comments` and `article-body` speak for or against what bears them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from data_prep.sources.page_blocks import HEADINGS, PROSE, SENTENCE_ENDS, Block, Blocks, Element
from data_prep.sources.page_roles import Role

_BODY_WEIGHT = {Role.BODY: 1.5}
_LANDMARK_WEIGHT = {"article": 1.1, "main": 1.1}
"""Factors of the scores of elements that say what they hold."""
_MAX_SHARE = {Role.DETAIL: 0.2, Role.ASIDE: 0.5, Role.OTHERS: 0.0, Role.HIDDEN: 0.0}
"""Of a page's prose that elements of one name may hold and yet be dropped for it, whatever else there is."""
_MAX_DETAIL = 1500
"""Characters of prose in a detail at most; a longer one is more than that."""
_ENOUGH = 250
"""Characters of prose outside of comments that make a page an article with comments, and not a page of comments."""
_ENOUGH_BODY = 150
"""The limit outside of a large aside, in elements that are named for an article's text."""
_MIN_SHARE = 0.7
"""Of a page's plain text that an element without a telling name must have: else the page is no article."""
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


def main_content(page: Blocks, title: str) -> list[Block]:
    """The blocks of a page's main content, in order; without the headline, which `title` tells."""
    is_kept = _without_asides(page)
    first, end = _choose_element(page, is_kept)
    blocks = [page.blocks[number] for number in range(first, end) if is_kept[number]]
    return _without_scraps(blocks, title)


def prose_size(blocks: Sequence[Block]) -> int:
    """Characters of plain text in blocks that have enough of it."""
    return sum(block.plain for block in blocks if block.score > 0)


def _without_asides(page: Blocks) -> list[bool]:
    """Of each block, whether it is outside of elements that are dropped for their names."""
    blocks = page.blocks
    prose = [block.score if block.score > 0 and block.plain >= PROSE else 0.0 for block in blocks]
    sums = [0.0, *accumulate(prose)]
    bodies = _sums_in_bodies(page, prose)
    named = [
        element for element in page.elements if element.role >= Role.DETAIL and element.first < element.end
    ]
    alike: dict[tuple[str, str], float] = defaultdict(float)
    for element in named:
        alike[element.tag, element.names] += sums[element.end] - sums[element.first]
    largest = _largest_body(page, sums)
    has_own_prose = _own_prose(named, sums, alike) >= _ENOUGH
    is_kept = [True] * len(blocks)
    left, done = sums[-1], 0
    for element in named:
        if element.first < done:
            continue
        inside = sums[element.end] - sums[element.first]
        body_outside = bodies[-1] - (bodies[element.end] - bodies[element.first])
        is_small = alike[element.tag, element.names] <= _MAX_SHARE[element.role] * left
        if inside > 0.5 * sums[-1] and largest.first >= element.first and largest.end <= element.end:
            is_dropped = False  # it holds the article, whatever its name
        elif element.role >= Role.OTHERS:
            is_dropped = not inside or has_own_prose
        elif element.role is Role.DETAIL:
            is_dropped = is_small and inside <= _MAX_DETAIL
        else:
            is_dropped = is_small or body_outside > max(_ENOUGH_BODY, 0.5 * inside)
        if is_dropped:
            for number in range(element.first, element.end):
                is_kept[number] = element.role is Role.DETAIL and _is_substance(element, blocks[number])
            left -= inside
            done = element.end
    return is_kept


def _own_prose(named: list[Element], sums: list[float], alike: Mapping[tuple[str, str], float]) -> float:
    """The prose of a page that is neither by other people or of other articles, nor in small asides."""
    own, done = sums[-1], 0
    for element in named:
        if element.role is Role.ASIDE:
            is_counted = alike[element.tag, element.names] > _MAX_SHARE[Role.ASIDE] * sums[-1]
        else:
            is_counted = element.role is Role.DETAIL
        if element.first >= done and not is_counted:
            own -= sums[element.end] - sums[element.first]
            done = element.end
    return own


def _sums_in_bodies(page: Blocks, prose: list[float]) -> list[float]:
    """Running sums of the prose that stands in elements named for an article's text."""
    in_body, done = [False] * len(prose), 0
    for element in page.elements:
        if element.role is Role.BODY and element.first >= done:
            in_body[element.first : element.end] = [True] * (element.end - element.first)
            done = element.end
    return [
        0.0,
        *accumulate(amount if inside else 0.0 for amount, inside in zip(prose, in_body, strict=True)),
    ]


def _largest_body(page: Blocks, sums: list[float]) -> Element:
    """The innermost of the elements that are named for an article's text and have most prose."""
    bodies = [element for element in page.elements if element.role is Role.BODY]
    return max(
        reversed(bodies),
        key=lambda body: sums[body.end] - sums[body.first],
        default=Element("", "", Role.NONE, 0, 0),
    )


def _is_substance(element: Element, block: Block) -> bool:
    """Tables and code in figures, and the headings of sections, are no details."""
    return block.kind in ("pre", "tr") or (element.tag == "header" and block.kind in HEADINGS)


def _choose_element(page: Blocks, is_kept: list[bool]) -> tuple[int, int]:
    """The blocks of the element that has most plain text beside least else; the whole page, if it has too little."""
    kept = list(zip(page.blocks, is_kept, strict=True))
    sums = [0.0, *accumulate(block.score if is_kept else 0.0 for block, is_kept in kept)]
    plain = [0, *accumulate(block.plain if is_kept and block.score > 0 else 0 for block, is_kept in kept)]
    whole = Element("", "", Role.NONE, 0, len(page.blocks))
    best, best_score = whole, 0.0
    for element in page.elements:
        score = sums[element.end] - sums[element.first]
        if score <= 0:
            continue
        score *= _BODY_WEIGHT.get(element.role, 1.0) * _LANDMARK_WEIGHT.get(element.tag, 1.0)
        if score >= best_score:
            best, best_score = element, score
    best = _tightened(page.elements, sums, best)
    if best.role is not Role.BODY and plain[best.end] - plain[best.first] < _MIN_SHARE * plain[-1]:
        best = whole
    return best.first, best.end


def _tightened(elements: list[Element], sums: list[float], best: Element) -> Element:
    """The innermost element within that is named for the article's text and has most of it."""
    tight, least = best, 0.7 * (sums[best.end] - sums[best.first])
    for element in elements:
        if element.role is Role.BODY and best.first <= element.first and element.end <= best.end:
            score = sums[element.end] - sums[element.first]
            if score > 0 and score >= least:
                tight, least = element, 0.9 * score
    return tight


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


def render(blocks: Sequence[Block]) -> str:
    """Blocks as text: items of a list and rows of a table on lines of their own, all else parted by blank lines."""
    parts: list[str] = []
    previous = ""
    for block in blocks:
        if parts:
            parts.append("\n" if block.kind == previous and previous in ("li", "tr") else "\n\n")
        parts.append(block.text)
        previous = block.kind
    return "".join(parts)
