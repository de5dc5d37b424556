"""Roles of a page's elements (article, comment, byline, ...) by tags, machine-readable marks, and words of their names.

`page_names.yaml` lists the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from data_prep.text import names, table


class Role(IntEnum):
    """The role of an element's text, as far as tag and names show it."""

    NONE = 0
    BODY = 1
    """An article's text, without its surroundings."""
    DETAIL = 2
    """Belongs to an article, but not to its text: byline, date, caption, tags, buttons."""
    ASIDE = 3
    """Belongs to the site or to other articles: navigation, teasers, advertisements, forms."""
    OTHERS = 4
    """By other people or of other articles, often longer than the article: comments, related articles."""
    HIDDEN = 5
    """Not shown."""


NAMES = table("page_names")


def roles_of(kind: str) -> dict[str, Role]:
    """The roles of the names of a kind in `page_names.yaml`."""
    return {name: Role[role] for role, listed in NAMES[kind].items() for name in listed.split()}


ATTRIBUTES = names("class id itemprop property hidden aria-hidden style role")
"""Attributes that may name a role."""
_WORDS = {form: role for word, role in roles_of("words").items() for form in (word, f"{word}s")}
_BEGINNINGS, _PROPERTIES = roles_of("beginnings"), roles_of("properties")
_ARIA = names(NAMES["aria"])
_BEGINNING = re.compile("|".join(_BEGINNINGS))
_STATE = re.compile(f"(?:{'|'.join(NAMES['states'].split())})[-_]")
_WORD = re.compile("[A-Z]?[a-z0-9]+|[A-Z]+")
_LONGEST_NAME = 4
"""Words."""
_MAX_NAMES = 400
"""Most characters of an element's classes and id together; longer ones are generated, and say nothing."""
_WHOLE_PAGE = names("body html main article")
"""Tags whose names describe the page as a whole, such as `article has-comments`."""
_DISPLAY_NONE = re.compile("display *: *none", re.IGNORECASE)


@lru_cache(1 << 16)
def _role_of_name(name: str) -> Role:
    """The last role, in the order of `Role`, that words of a class or id mean; they may be written together."""
    if ":" in name or _STATE.match(name):
        return Role.NONE
    roles = [Role.NONE]
    words = [word.lower() for word in _WORD.findall(name)]
    for number, word in enumerate(words):
        for end in range(number + 1, min(number + _LONGEST_NAME, len(words)) + 1):
            roles.append(_WORDS.get("".join(words[number:end]), Role.NONE))
        if start := _BEGINNING.match(word):
            roles.append(_BEGINNINGS[start.group()])
        elif word.endswith(("comment", "comments")):
            roles.append(Role.OTHERS)
    return max(roles)


def role_of_names(classes: str) -> Role:
    """The role by an element's classes; of several, the last in the order of `Role`."""
    return max(map(_role_of_name, classes.split(" ")))


def role_of_element(tag: str, by_tag: int, is_inline: bool, attributes: Mapping[str, str]) -> int:
    """The role of an element: names count more than its tag, and machine-readable marks more than both.

    Args:
        is_inline: whether classes alone decide.
        attributes: as they are written, without references to characters.
    """
    classes, own_id = attributes.get("class", ""), "" if is_inline else attributes.get("id", "")
    is_page = tag in _WHOLE_PAGE
    role: int = Role.NONE
    if not is_page and len(classes) + len(own_id) <= _MAX_NAMES:
        role = max(role_of_names(classes), _role_of_name(own_id))
    if is_inline:
        return role
    if stated := _PROPERTIES.get(attributes.get("itemprop") or attributes.get("property", "")):
        return stated
    if role != Role.BODY and (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or _DISPLAY_NONE.search(attributes.get("style", ""))
    ):
        return Role.HIDDEN
    if not is_page and attributes.get("role") in _ARIA:
        return Role.ASIDE
    return by_tag if role <= Role.BODY and by_tag else role
