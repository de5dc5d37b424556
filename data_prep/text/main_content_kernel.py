"""The compiled loops of `main_content.py`; calling nothing of other files, they are never older than they are.

Arrays are those of `page_blocks.Blocks`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_SIZE, _LINKED, _SCORE, _KIND = 3, 4, 5, 2
_KEY, _ROLE, _FIRST, _END, _VALUE = range(5)
_BODY, _DETAIL, _ASIDE, _OTHERS = 1, 2, 3, 4
_ROW, _PRE, _FIRST_HEADING = 3, 4, 5
_HEADER, _LANDMARK = 1 << 12, 1 << 13
_MAX_SHARES = np.array([0.0, 0.0, 0.2, 0.5, 0.0, 0.0])
"""Of a page's prose that elements of one name may hold and yet be dropped for it, whatever else there is, by role."""
_MAX_DETAIL = 1500
"""Characters of prose in a detail at most; a longer one is more than that."""
_ENOUGH = 250
"""Characters of prose outside of comments that make a page an article with comments, and not a page of comments."""
_ENOUGH_BODY = 150
"""The limit outside of a large aside, in elements that are named for an article's text."""
_BODY_WEIGHT, _LANDMARK_WEIGHT = 1.5, 1.1
"""Factors of the scores of elements that say what they hold."""
_MIN_SHARE = 0.7
"""Of a page's plain text that an element without a telling name must have: else the page is no article."""


@njit(cache=True, nogil=True)
def _sums_of_prose(blocks: np.ndarray, prose: int) -> np.ndarray:
    sums = np.zeros(len(blocks) + 1, np.int64)
    for number in range(len(blocks)):
        plain = blocks[number, _SIZE] - blocks[number, _LINKED]
        score = np.int64(blocks[number, _SCORE])
        sums[number + 1] = sums[number] + (score if score > 0 and plain >= prose else 0)
    return sums


@njit(cache=True, nogil=True)
def _sums_in_bodies(elements: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Running sums of the prose that stands in elements named for an article's text."""
    found, done = np.zeros(len(sums), np.int64), 0
    for element in elements:
        if element[_ROLE] == _BODY and element[_FIRST] >= done:
            for number in range(element[_FIRST], element[_END]):
                found[number + 1] = sums[number + 1] - sums[number]
            done = np.int64(element[_END])
    return np.cumsum(found)


@njit(cache=True, nogil=True)
def _largest_body(elements: np.ndarray, sums: np.ndarray) -> tuple[int, int]:
    """The innermost of the elements that are named for an article's text and have most prose: its blocks."""
    first, end, most = 0, 0, -1
    for number in range(len(elements) - 1, -1, -1):
        body = elements[number]
        if body[_ROLE] == _BODY and sums[body[_END]] - sums[body[_FIRST]] > most:
            first, end = int(body[_FIRST]), int(body[_END])
            most = sums[end] - sums[first]
    return first, end


@njit(cache=True, nogil=True)
def _own_prose(named: np.ndarray, sums: np.ndarray, alike: np.ndarray) -> int:
    """The prose of a page that is neither by other people or of other articles, nor in small asides."""
    own, done = sums[-1], 0
    for element in named:
        if element[_ROLE] == _ASIDE:
            is_counted = alike[element[_KEY]] > _MAX_SHARES[_ASIDE] * sums[-1]
        else:
            is_counted = element[_ROLE] == _DETAIL
        if element[_FIRST] >= done and not is_counted:
            own -= sums[element[_END]] - sums[element[_FIRST]]
            done = np.int64(element[_END])
    return own


@njit(cache=True, nogil=True)
def _number_keys(elements: np.ndarray) -> None:
    """Replace the hashes of tags and classes by numbers below the number of elements."""
    size = 2
    while size < 2 * len(elements):
        size *= 2
    places, hashes_of = np.full(size, -1, np.int64), elements[:, _KEY].copy()
    for number in range(len(elements)):
        key = elements[number, _KEY]
        place = key & (size - 1)
        while places[place] >= 0 and hashes_of[places[place]] != key:
            place = (place + 1) & (size - 1)
        if places[place] < 0:
            places[place] = number
        elements[number, _KEY] = places[place]


@njit(cache=True, nogil=True)
def without_asides(blocks: np.ndarray, elements: np.ndarray, prose: int) -> np.ndarray:
    """Of each block, whether it is outside of elements that are dropped for their names: [blocks] bool.

    Args:
        prose: least characters of plain text in a block of prose.
    """
    sums = _sums_of_prose(blocks, prose)
    bodies = _sums_in_bodies(elements, sums)
    named = elements[(elements[:, _ROLE] >= _DETAIL) & (elements[:, _FIRST] < elements[:, _END])]
    _number_keys(named)
    alike = np.zeros(len(named), np.int64)
    for element in named:
        alike[element[_KEY]] += sums[element[_END]] - sums[element[_FIRST]]
    largest_first, largest_end = _largest_body(elements, sums)
    has_own_prose = _own_prose(named, sums, alike) >= _ENOUGH
    is_kept = np.ones(len(blocks), np.bool_)
    left, done = sums[-1], 0
    for element in named:
        first, end, role = np.int64(element[_FIRST]), np.int64(element[_END]), np.int64(element[_ROLE])
        if first < done:
            continue
        inside = sums[end] - sums[first]
        body_outside = bodies[-1] - (bodies[end] - bodies[first])
        is_small = alike[element[_KEY]] <= _MAX_SHARES[role] * left
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
                is_kept[number] = role == _DETAIL and _is_substance(blocks[number, _KIND], element[_VALUE])
            left -= inside
            done = end
    return is_kept


@njit(cache=True, nogil=True)
def _is_substance(kind: int, value: int) -> bool:
    """Tables and code in figures, and the headings of sections, are no details."""
    return kind in (_ROW, _PRE) or (kind >= _FIRST_HEADING and value & _HEADER != 0)


@njit(cache=True, nogil=True)
def choose_element(blocks: np.ndarray, elements: np.ndarray, is_kept: np.ndarray) -> tuple[int, int]:
    """The blocks of the element that has most plain text beside least else; the whole page, if it has too little."""
    sums, plain = np.zeros(len(blocks) + 1, np.int64), np.zeros(len(blocks) + 1, np.int64)
    for number in range(len(blocks)):
        score = np.int64(blocks[number, _SCORE]) if is_kept[number] else 0
        sums[number + 1] = sums[number] + score
        is_plain = score > 0
        own = blocks[number, _SIZE] - blocks[number, _LINKED] if is_plain else 0
        plain[number + 1] = plain[number] + own
    first, end, is_body, best = 0, len(blocks), False, 0.0
    for element in elements:
        score = float(sums[element[_END]] - sums[element[_FIRST]])
        if score <= 0:
            continue
        weight = _BODY_WEIGHT if element[_ROLE] == _BODY else 1.0
        score *= weight * (_LANDMARK_WEIGHT if element[_VALUE] & _LANDMARK else 1.0)
        if score >= best:
            first, end, is_body, best = element[_FIRST], element[_END], element[_ROLE] == _BODY, score
    # The innermost element within that is named for the article's text and has most of it.
    inner_first, inner_end = first, end
    least = 0.7 * (sums[end] - sums[first])
    for element in elements:
        if element[_ROLE] == _BODY and first <= element[_FIRST] and element[_END] <= end:
            amount = sums[element[_END]] - sums[element[_FIRST]]
            if amount > 0 and amount >= least:
                inner_first, inner_end, is_body, least = element[_FIRST], element[_END], True, 0.9 * amount
    first, end = inner_first, inner_end
    if not is_body and plain[end] - plain[first] < _MIN_SHARE * plain[-1]:
        return 0, len(blocks)
    return int(first), int(end)
