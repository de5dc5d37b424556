"""Tags that mark named entities, in BIO, BIOES and IOB1 (Tjong Kim Sang and Veenstra 1999), and precision, recall and
F1 of entities, as conlleval counts them (Tjong Kim Sang and Buchholz 2000, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.tasks.files.lines import wrong_line

Scheme = Literal["bio", "bioes", "iob1"]
OUTSIDE = "O"
"""The tag of a word outside of all entities."""
PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bio": ("B", "I"), "iob1": ("B", "I"), "bioes": ("B", "I", "E", "S")}
)
"""By scheme: the prefixes of tags inside of entities."""
LabelledWord = tuple[str, str, str]
"""The name of a line, a word and its tag."""
Entity = tuple[str, int, int]
"""Type, index of the first word, and index of the word after the last."""


def prefix_of(tag: str) -> str:
    """`B` of `B-PER`."""
    return tag.partition("-")[0]


def type_of(tag: str) -> str:
    """`PER` of `B-PER`; empty for `O`."""
    return tag.partition("-")[2]


def _is_inside(before: str, tag: str) -> bool:
    """Whether the tag before is B or I of the same type."""
    return before != OUTSIDE and prefix_of(before) in "BI" and type_of(before) == type_of(tag)


_MAY_FOLLOW: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {
        # I continues an entity of its type; all else begins one, or is outside.
        "bio": lambda before, tag: prefix_of(tag) != "I" or _is_inside(before, tag),
        "iob1": lambda before, tag: prefix_of(tag) != "B" or _is_inside(before, tag),
        "bioes": lambda before, tag: (
            _is_inside(before, tag) if prefix_of(tag) in "IE" else prefix_of(before) not in "BI"
        ),
    }
)
"""By scheme: (tag before, tag) to whether one may follow the other."""


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
            tags = [OUTSIDE, *(each for _, _, each in sentence)]
            others = [
                other
                for other, prefixes in PREFIXES.items()
                if all(each == OUTSIDE or prefix_of(each) in prefixes for each in tags)
                and all(starmap(_MAY_FOLLOW[other], pairwise(tags)))
            ]
            remedy = f"set `scheme: {' or '.join(others)}`, which this sentence fits" if others else ""
            raise wrong_line(path, name, problem, remedy)
        before = tag
    if scheme == "bioes" and prefix_of(before) in "BI":
        raise wrong_line(path, sentence[-1][0], f"the entity of {before!r} has no end in the scheme bioes")


def as_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in IOB1 as BIO: the first word of every entity gets B."""
    return tuple(
        f"B-{type_of(tag)}" if tag != OUTSIDE and type_of(before) != type_of(tag) else tag
        for before, tag in pairwise((OUTSIDE, *tags))
    )


def entity_metrics(right: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """`f1`, `precision` and `recall` of entities, which count only whole and with the right type, and `accuracy` of
    tags.

    All in [0, 1], over the entities of all sentences together; 0 where nothing is to be divided by.
    """
    pairs = [
        (set(entities(tags)), set(entities(guessed)))
        for tags, guessed in zip(right, predictions, strict=True)
    ]
    num_right, num_found = (sum(len(side) for side in sides) for sides in zip(*pairs, strict=True))
    num_common = sum(len(tags & guessed) for tags, guessed in pairs)
    precision = num_common / num_found if num_found else 0.0
    recall = num_common / num_right if num_right else 0.0
    f1 = 2 * precision * recall / (precision + recall) if num_common else 0.0
    accuracy = tag_accuracy(right, predictions)
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}


def tag_accuracy(right: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> float:
    """Share of the words with the right tag, in [0, 1]; at least one word."""
    equal = [
        tag == guessed
        for tags, guesses in zip(right, predictions, strict=True)
        for tag, guessed in zip(tags, guesses, strict=True)
    ]
    return sum(equal) / len(equal)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities that the tags of a sentence mark, in any of the schemes.

    Tags that no scheme allows, as networks predict them, are read as conlleval reads them: a type that changes begins
    an entity, and so does an I after O.
    """
    found: list[Entity] = []
    begun: int | None = None
    for number, (before, tag) in enumerate(pairwise((OUTSIDE, *tags, OUTSIDE))):
        is_between = (
            tag == OUTSIDE
            or prefix_of(tag) in ("B", "S")
            or prefix_of(before) in ("E", "S")
            or type_of(tag) != type_of(before)
        )
        if begun is not None and is_between:
            found.append((type_of(before), begun, number))
            begun = None
        if tag != OUTSIDE and begun is None:
            begun = number
    return found
