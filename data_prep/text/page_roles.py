"""The role of a page's elements by their tags and names: article, comment, byline, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from data_prep.text import names, table
from data_prep.text.page_roles_kernel import ARIA, END_BIT, START_BIT, TRUE, fill_roles
from data_prep.text.page_roles_kernel import role_of_names as compiled_role_of_names


class Role(IntEnum):
    """The role of an element's text, as far as tag and names show it."""

    NONE = 0
    BODY = 1
    """An article's text, without what stands around it."""
    DETAIL = 2
    """Belongs to an article, but not to its text: byline, date, caption, tags, buttons."""
    ASIDE = 3
    """Belongs to the site or to other articles: navigation, teasers, advertisements, forms."""
    OTHERS = 4
    """By other people or of other articles, often longer than the article: comments, related articles."""
    HIDDEN = 5
    """Not shown."""


_ATTRIBUTE_NAMES = ("class", "id", "itemprop", "property", "hidden", "aria-hidden", "style", "role")
"""Attributes that may name a role, in the order of `CLASS` to `ROLE`."""
TAGS = {
    "address": Role.DETAIL,
    "aside": Role.ASIDE,
    "dialog": Role.ASIDE,
    "figcaption": Role.DETAIL,
    "figure": Role.DETAIL,
    "footer": Role.ASIDE,
    "form": Role.ASIDE,
    "header": Role.DETAIL,
    "nav": Role.ASIDE,
    "time": Role.DETAIL,
}
_LANDMARKS = names("body html main article")
"""Their names describe the page as a whole, such as `article has-comments`."""
_ARIA_ROLES = names(
    "alert alertdialog banner complementary contentinfo dialog menu navigation search toolbar"
)
_PROPERTIES = {
    "articleBody": Role.BODY,
    "author": Role.DETAIL,
    "caption": Role.DETAIL,
    "datePublished": Role.DETAIL,
    "dateModified": Role.DETAIL,
    "comment": Role.OTHERS,
}
"""schema.org, as microdata or RDFa."""

_BEGINNINGS = {
    Role.OTHERS: ("related", "recirc", "recommend", "comment"),
    Role.ASIDE: ("promotion", "subscri", "donat", "advert", "sponsor", "sidebar"),
    Role.DETAIL: ("byline", "share", "addthis", "social", "pullquote"),
}
_STATES = names("has no with without js is category tag wp-image align size type status format overflow")
"""Beginnings, ahead of a hyphen, of names that mean a state or a subject, such as `has-sidebar`."""


def hash_table(values: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """An open table of the hashes (FNV-1a, uint64) of names, and their values with one more bit (int32), both of a
    power of two."""
    size = 1 << (4 * len(values)).bit_length()
    hashes, numbers = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int32)
    for name, value in values.items():
        hashed = 0xCBF29CE484222325
        for byte in name.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % (1 << 64)
        place = hashed % size
        while numbers[place]:
            place = (place + 1) % size
        hashes[place], numbers[place] = hashed, value << 1 | 1
    return hashes, numbers


def _words() -> dict[str, int]:
    """Hints that words give, as the kernel reads them."""
    values: dict[str, int] = defaultdict(int)
    for role, words in table("page_names").items():
        for word in words.split():
            values[word], values[word + "s"] = Role[role], Role[role]
    for role, starts in _BEGINNINGS.items():
        for start in starts:
            values[start] |= role << START_BIT
    for end in ("comment", "comments"):
        values[end] |= END_BIT
    return values


ATTRIBUTES = hash_table({name: number for number, name in enumerate(_ATTRIBUTE_NAMES)})
_PAGES = hash_table(dict.fromkeys(_LANDMARKS, 0))
_MARKS = hash_table(_PROPERTIES | dict.fromkeys(_ARIA_ROLES, ARIA) | {"true": TRUE})
_NAMES = (*hash_table(_words()), *hash_table(dict.fromkeys(_STATES, 0)))


def find_roles(
    data: np.ndarray,
    elements: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    is_inline: np.ndarray,
    roles: np.ndarray,
) -> np.ndarray:
    """Replace the roles of elements by their tags with those by their names and marks; returns hashes of their tags
    and classes, [tokens] int32.

    Args:
        data: uint8, a serialized page.
        elements: [elements] int64 numbers of the tokens that may have a role.
        firsts, ends: [tokens] int32 bytes of the contents of a tag.
        is_inline: [tokens] bool, whether classes alone decide its role.
        roles: [tokens] int8.
    """
    keys = np.zeros(len(roles), dtype=np.int32)
    fill_roles(data, elements, firsts, ends, is_inline, *_PAGES, *ATTRIBUTES, *_MARKS, *_NAMES, roles, keys)
    return keys


def role_of_names(classes: str) -> Role:
    """The role by an element's classes; of several, the last in the order of `Role`."""
    data = np.frombuffer(classes.encode("utf-8"), dtype=np.uint8)
    room = np.empty((len(data) + 1, 2), dtype=np.int64)
    return Role(compiled_role_of_names(data, 0, len(data), False, *_NAMES, room))
