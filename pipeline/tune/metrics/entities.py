"""Precision, recall and F1 of named entities, as conlleval counts them (Tjong Kim Sang and Buchholz 2000, section
4)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.tune.files.tag_schemes import OUTSIDE, prefix_of, type_of

Entity = tuple[str, int, int]
"""Type, number of the first word, and number of the word after the last."""


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
    """The entities that the tags of a sentence mark, in BIO, BIOES or IOB1.

    Tags that no scheme allows, as networks predict them, are read as conlleval reads them: a type that changes begins
    an entity, and so does an I after O.
    """
    found: list[Entity] = []
    begun: int | None = None
    before = OUTSIDE
    for number, tag in enumerate([*tags, OUTSIDE]):
        if begun is not None and _ends_between(before, tag):
            found.append((type_of(before), begun, number))
            begun = None
        if tag != OUTSIDE and begun is None:
            begun = number
        before = tag
    return found


def _ends_between(before: str, tag: str) -> bool:
    """Whether an entity that holds the word before ends there."""
    return (
        tag == OUTSIDE
        or prefix_of(tag) in ("B", "S")
        or prefix_of(before) in ("E", "S")
        or type_of(tag) != type_of(before)
    )
