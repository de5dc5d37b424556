"""The worst errors of a training, with their texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.tune.report.lines import judge, texts_of
from pipeline.tune.report.scores import Line


@dataclass(frozen=True, slots=True)
class WrongPrediction:
    """An evaluation example that a network got wrong."""

    id: str
    right: str
    predicted: str
    remark: str
    """How sure the network was, or how much is right."""
    texts: dict[str, str]
    """By name, cut to 1,000 characters."""


def worst_of(lines: Iterable[Line], count: int) -> list[WrongPrediction]:
    """The worst errors of a training, the worst first: the label, choice or span that the network was surest of; the
    text with the lowest ROUGE-1; the sentence with the largest share of wrong tags; the number that is furthest off.

    Spans are ordered by F1 before that. Equally bad errors stay in the order of the examples.
    """
    judged = [(judge(line), line) for line in lines]
    wrong = [(found, line) for found, line in judged if found.error > (0, 0)]
    wrong.sort(key=lambda pair: pair[0].error, reverse=True)
    return [
        WrongPrediction(line["id"], found.right, found.predicted, found.remark, texts_of(line))
        for found, line in wrong[:count]
    ]
