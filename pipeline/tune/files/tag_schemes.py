"""How the tags of words mark entities: BIO, BIOES and IOB1 (Tjong Kim Sang and Veenstra 1999)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.tune.files.annotated import LabelledWord
from pipeline.tune.files.lines import wrong_line

Scheme = Literal["bio", "bioes", "iob1"]
OUTSIDE = "O"
"""The tag of a word outside of all entities."""
_MAY_FOLLOW: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {
        # I goes on with an entity of its type; all else begins one, or is outside.
        "bio": lambda before, tag: prefix_of(tag) != "I" or _is_inside(before, tag, "BI"),
        "iob1": lambda before, tag: prefix_of(tag) != "B" or _is_inside(before, tag, "BI"),
        "bioes": lambda before, tag: (
            _is_inside(before, tag, "BI") if prefix_of(tag) in "IE" else prefix_of(before) not in "BI"
        ),
    }
)
"""By scheme: (tag before, tag) to whether one may follow the other."""
PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bio": ("B", "I"), "iob1": ("B", "I"), "bioes": ("B", "I", "E", "S")}
)
"""By scheme: the prefixes of tags inside of entities."""


def prefix_of(tag: str) -> str:
    """`B` of `B-PER`."""
    return tag.partition("-")[0]


def type_of(tag: str) -> str:
    """`PER` of `B-PER`; empty for `O`."""
    return tag.partition("-")[2]


def check_scheme(path: Path, sentence: Sequence[LabelledWord], scheme: Scheme) -> None:
    """Check the tags of a sentence.

    Raises:
        ConfigError: a tag is no tag of the scheme, or may not follow the one before; file and line are named.
    """
    before = OUTSIDE
    for name, word, tag in sentence:
        if tag != OUTSIDE and (prefix_of(tag) not in PREFIXES[scheme] or not type_of(tag)):
            known = ", ".join((OUTSIDE, *(f"{prefix}-TYPE" for prefix in PREFIXES[scheme])))
            raise wrong_line(path, name, f"the tag of {word!r} is {tag!r}, not one of {known}")
        if not _MAY_FOLLOW[scheme](before, tag):
            problem = f"the tag {tag!r} of {word!r} may not follow {before!r} in the scheme {scheme}"
            others = [other for other in PREFIXES if _fits(sentence, other)]
            remedy = f"set `scheme: {' or '.join(others)}`, which this sentence fits" if others else ""
            raise wrong_line(path, name, problem, remedy)
        before = tag
    if scheme == "bioes" and prefix_of(before) in "BI":
        raise wrong_line(path, sentence[-1][0], f"the entity of {before!r} has no end in the scheme bioes")


def _fits(sentence: Sequence[LabelledWord], scheme: str) -> bool:
    """Whether all tags of a sentence are of a scheme, and follow each other as they may in it."""
    tags = [OUTSIDE, *(tag for _, _, tag in sentence)]
    known = all(tag == OUTSIDE or prefix_of(tag) in PREFIXES[scheme] for tag in tags)
    return known and all(starmap(_MAY_FOLLOW[scheme], pairwise(tags)))


def _is_inside(before: str, tag: str, prefixes: str) -> bool:
    return before != OUTSIDE and prefix_of(before) in prefixes and type_of(before) == type_of(tag)


def as_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in IOB1 as BIO: the first word of every entity gets B."""
    pairs = zip((OUTSIDE, *tags), tags, strict=False)
    return tuple(
        f"B-{type_of(tag)}" if tag != OUTSIDE and type_of(before) != type_of(tag) else tag
        for before, tag in pairs
    )
