"""The main content of a page: which element holds it, and which of that element's blocks are its text.

The method, step by step:

1. `page_blocks.py` cuts the page, as a parser of HTML has repaired it, into texts and tags, without those that change
   nothing.
2. It gives elements a role by their tag, their classes and id, and machine-readable marks: an article's text, a detail
   of it (byline, caption), an aside (navigation, advertisements), by others (comments, related articles), hidden.
3. It makes blocks of text between which lines break, and scores each: its characters of plain text,
   less a price for every block and twice the characters in links. Plain text counts for the elements around it,
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
from collections.abc import Sequence

import numpy as np
from numba import njit

from data_prep.text.page_blocks import HEADINGS, PROSE, SENTENCE_ENDS, Block, Blocks

_BODY, _DETAIL, _ASIDE, _OTHERS = 1, 2, 3, 4
_ROW, _PRE, _FIRST_HEADING = 3, 4, 5
_HEADER, _LANDMARK = 1 << 12, 1 << 13
_MAX_SHARES = np.array([0.0, 0.0, 0.2, 0.5, 0.0, 0.0])
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


@njit(cache=True, nogil=True)
def _sums_of_prose(blocks: np.ndarray, prose: int) -> np.ndarray:
    """Running sums of the scores of prose."""
    sums = np.zeros(len(blocks) + 1, np.int64)
    for number, block in enumerate(blocks):
        is_prose = block.score > 0 and block.size - block.linked >= prose
        sums[number + 1] = sums[number] + (block.score if is_prose else 0)
    return sums


@njit(cache=True, nogil=True)
def _sums_in_bodies(elements: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Running sums of the prose in elements named for an article's text."""
    found, done = np.zeros(len(sums), np.int64), 0
    for element in elements:
        if element.role == _BODY and element.first >= done:
            for number in range(element.first, element.end):
                found[number + 1] = sums[number + 1] - sums[number]
            done = np.int64(element.end)
    return np.cumsum(found)


@njit(cache=True, nogil=True)
def _largest_body(elements: np.ndarray, sums: np.ndarray) -> tuple[int, int]:
    """The innermost of the elements that are named for an article's text and have most prose: its blocks."""
    first, end, most = 0, 0, -1
    for number in range(len(elements) - 1, -1, -1):
        body = elements[number]
        if body.role == _BODY and sums[body.end] - sums[body.first] > most:
            first, end = int(body.first), int(body.end)
            most = sums[end] - sums[first]
    return first, end


@njit(cache=True, nogil=True)
def _own_prose(named: np.ndarray, sums: np.ndarray, alike: np.ndarray) -> int:
    """The prose of a page that is neither by other people or of other articles, nor in small asides."""
    own, done = sums[-1], 0
    for element in named:
        if element.role == _ASIDE:
            is_counted = alike[element.key] > _MAX_SHARES[_ASIDE] * sums[-1]
        else:
            is_counted = element.role == _DETAIL
        if element.first >= done and not is_counted:
            own -= sums[element.end] - sums[element.first]
            done = np.int64(element.end)
    return own


@njit(cache=True, nogil=True)
def without_asides(blocks: np.ndarray, elements: np.ndarray, named: np.ndarray, prose: int) -> np.ndarray:
    """Whether each block is outside of elements that are dropped for their names: [blocks] bool.

    Args:
        named: the elements that may be; their keys are numbers below how many they are.
        prose: least characters of plain text in a block of prose.
    """
    sums = _sums_of_prose(blocks, prose)
    bodies = _sums_in_bodies(elements, sums)
    alike = np.zeros(len(named), np.int64)
    for element in named:
        alike[element.key] += sums[element.end] - sums[element.first]
    largest_first, largest_end = _largest_body(elements, sums)
    has_own_prose = _own_prose(named, sums, alike) >= _ENOUGH
    is_kept = np.ones(len(blocks), np.bool_)
    left, done = sums[-1], 0
    for element in named:
        first, end, role = np.int64(element.first), np.int64(element.end), np.int64(element.role)
        if first < done:
            continue
        inside = sums[end] - sums[first]
        body_outside = bodies[-1] - (bodies[end] - bodies[first])
        is_small = alike[element.key] <= _MAX_SHARES[role] * left
        if inside > 0.5 * sums[-1] and largest_first >= first and largest_end <= end:
            is_dropped = False  # it holds the article, whatever its name
        elif role >= _OTHERS:
            is_dropped = not inside or has_own_prose
        elif role == _DETAIL:
            is_dropped = is_small and inside <= _MAX_DETAIL
        else:
            is_dropped = is_small or body_outside > max(_ENOUGH_BODY, 0.5 * inside)
        if is_dropped:
            for number in range(first, end):
                # Tables and code in figures, and the headings of sections, are no details.
                kind = blocks[number].kind
                is_substance = kind in (_ROW, _PRE) or (
                    kind >= _FIRST_HEADING and element.value & _HEADER != 0
                )
                is_kept[number] = role == _DETAIL and is_substance
            left -= inside
            done = end
    return is_kept


@njit(cache=True, nogil=True)
def choose_element(blocks: np.ndarray, elements: np.ndarray, is_kept: np.ndarray) -> tuple[int, int]:
    """The blocks of the element that has most plain text beside least else; the whole page, if it has too little."""
    sums, plain = np.zeros(len(blocks) + 1, np.int64), np.zeros(len(blocks) + 1, np.int64)
    for number in range(len(blocks)):
        score = np.int64(blocks[number].score) if is_kept[number] else 0
        sums[number + 1] = sums[number] + score
        is_plain = score > 0
        own = blocks[number].size - blocks[number].linked if is_plain else 0
        plain[number + 1] = plain[number] + own
    first, end, is_body, best = 0, len(blocks), False, 0.0
    for element in elements:
        score = float(sums[element.end] - sums[element.first])
        if score <= 0:
            continue
        weight = _BODY_WEIGHT if element.role == _BODY else 1.0
        score *= weight * (_LANDMARK_WEIGHT if element.value & _LANDMARK else 1.0)
        if score >= best:
            first, end, is_body, best = element.first, element.end, element.role == _BODY, score
    # The innermost element within that is named for the article's text and has most of it.
    inner_first, inner_end = first, end
    least = 0.7 * (sums[end] - sums[first])
    for element in elements:
        if element.role == _BODY and first <= element.first and element.end <= end:
            amount = sums[element.end] - sums[element.first]
            if amount > 0 and amount >= least:
                inner_first, inner_end, is_body, least = element.first, element.end, True, 0.9 * amount
    first, end = inner_first, inner_end
    if not is_body and plain[end] - plain[first] < _MIN_SHARE * plain[-1]:
        return 0, len(blocks)
    return int(first), int(end)


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
    elements = page.elements
    named = elements[(elements["role"] >= _DETAIL) & (elements["first"] < elements["end"])]
    named["key"] = np.unique(named["key"], return_inverse=True)[1]
    is_kept = without_asides(page.blocks, elements, named, PROSE)
    first, end = choose_element(page.blocks, elements, is_kept)
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
