"""The lines of predictions that forms write: right or wrong, how sure, their texts; the worst errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.tasks.metrics.squad import best_of, exact_scores, overlap, question_scores
from pipeline.tasks.metrics.texts import ROUGE_NAMES, sentence_lines
from pipeline.tune.scores import Line

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

TEXTS = ("question", "context", "source", "text", "text_b", "choices")
"""Keys of the texts that a line repeats, in reading order."""


Judged = tuple[tuple[float, float], str, str, str]
"""A prediction beside the right answer: how bad the error is, worse ones higher, and (0, 0) for a right prediction; the
right answer and the predicted one; how sure the network was, or how much is right."""


def worst_of(lines: Iterable[Line], count: int) -> list[dict[str, Any]]:
    """The worst errors of a training, the worst first: the label, choice or span that the network was surest of; the
    text with the lowest ROUGE-1; the sentence with the largest share of wrong tags; the number that is furthest off.

    Spans are ordered by F1 before that. Equally bad errors stay in the order of the examples.

    Returns:
        Of each the `id` of its example, the `right` answer and the `predicted` one, a `remark` on how sure the network
        was or how much is right, and `texts` by name, cut to 1,000 characters.
    """
    judged = [(*_JUDGES[form_of(line)](line), line) for line in lines]
    wrong = sorted((each for each in judged if each[0] > (0, 0)), key=lambda each: each[0], reverse=True)
    return [
        {
            "id": line["id"],
            "right": right,
            "predicted": predicted,
            "remark": remark,
            "texts": texts_of(line),
        }
        for _, right, predicted, remark, line in wrong[:count]
    ]


def form_of(line: Line) -> str:
    """The kind of a line, by the key that only lines of this kind have."""
    return next((name for key, name in _KEYS.items() if key in line), "number")


def texts_of(line: Line) -> dict[str, str]:
    """The texts of a line by their names."""
    found = {key: line[key] for key in TEXTS if line.get(key)}
    if "words" in line:
        found["words"] = line["words"]
    return {key: " | ".join(text) if isinstance(text, list) else text for key, text in found.items()}


def span_scores(lines: Sequence[Line], metric: str) -> np.ndarray:
    """float64 [lines]: `f1` or `exact_match` of each predicted span, as SQuAD measures them."""
    answers = [line["answers"] for line in lines]
    predictions = [line["prediction"] for line in lines]
    if all(answers):
        scores = (
            exact_scores(answers, predictions)
            if metric == "exact_match"
            else best_of(overlap, answers, predictions)
        )
        return np.array(scores)
    exact, f1 = question_scores(answers, predictions)
    return exact if metric == "exact_match" else f1


def rouge_scores(lines: Sequence[Line], metric: str) -> np.ndarray:
    """float64 [lines]: F-measure of each text, by our name of the metric."""
    theirs = ROUGE_NAMES[metric]
    sides = [[line[key] for line in lines] for key in ("reference", "prediction")]
    if metric == "rouge_lsum":
        sides = [sentence_lines(texts) for texts in sides]
    scorer = _rouge_scorer(theirs)
    return np.array([scorer.score(*pair)[theirs].fmeasure for pair in zip(*sides, strict=True)])


@cache
def _rouge_scorer(theirs: str) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([theirs], use_stemmer=True)


def _label(line: Line) -> Judged:
    sure = _largest_share(line["logits"])
    is_right = line["label"] == line["prediction"]
    return _judged(line["label"], line["prediction"], sure, is_right)


def _choice(line: Line) -> Judged:
    def named(number: int) -> str:
        choices = line.get("choices", ())
        return f"{number}: {choices[number]}" if number < len(choices) else str(number)

    is_right = line["label"] == line["prediction"]
    return _judged(named(line["label"]), named(line["prediction"]), _largest_share(line["scores"]), is_right)


def _judged(right: str, predicted: str, sure: float, is_right: bool) -> Judged:
    return (0.0 if is_right else sure, 0.0), right, predicted, f"{sure:.1%} sure"


def _span(line: Line) -> Judged:
    f1, exact = (float(span_scores([line], metric)[0]) for metric in ("f1", "exact_match"))
    sure = (line["n_best"][0]["probability"] if line["n_best"] else None) or 0.0
    right = " | ".join(dict.fromkeys(line["answers"])) or "(no answer)"
    # Answers of articles and punctuation only may be equal without common words.
    error = (0.0, 0.0) if exact else (1 - f1, sure)
    return error, right, line["prediction"] or "(no answer)", f"F1 {f1:.2f}, {sure:.1%} sure"


def _text(line: Line) -> Judged:
    f1 = float(rouge_scores([line], "rouge1")[0])
    return (1 - f1, 0.0), line["reference"], line["prediction"], f"ROUGE-1 {f1:.2f}"


def _tags(line: Line) -> Judged:
    pairs = list(zip(line["words"], line["tags"], line["predictions"], strict=True))
    wrong = [(word, right, predicted) for word, right, predicted in pairs if right != predicted]
    share = len(wrong) / max(1, len(pairs))
    right = ", ".join(f"{word} {tag}" for word, tag, _ in wrong)
    predicted = ", ".join(f"{word} {tag}" for word, _, tag in wrong)
    return (share, float(len(wrong))), right, predicted, f"{len(wrong)} of {len(pairs)} words wrong"


def _number(line: Line) -> Judged:
    # JSON has no NaN, which a network may predict.
    predicted = math.nan if line["prediction"] is None else line["prediction"]
    off = abs(line["label"] - predicted)
    error = (math.inf if math.isnan(off) else off, 0.0)
    return error, f"{line['label']:g}", f"{predicted:.3g}", f"{off:.3g} apart"


def _largest_share(scores: Sequence[float | None]) -> float:
    """The highest softmax of some scores."""
    finite = [score for score in scores if score is not None and math.isfinite(score)]
    if not finite:
        return 0.0
    return 1 / sum(math.exp(score - max(finite)) for score in finite)


def _response(line: Line) -> Judged:
    mean = line["loss"] / max(1, line["tokens"])
    remark = f"{mean:.2f} nats per token, {line['tokens']} tokens"
    return (mean, 0.0), line["response"], "(not written)", remark


_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "logits": "label",
        "scores": "choice",
        "n_best": "span",
        "reference": "text",
        "tags": "tags",
        "response": "response",
    }
)
_JUDGES: Mapping[str, Callable[[dict[str, Any]], Judged]] = MappingProxyType(
    {
        "label": _label,
        "choice": _choice,
        "span": _span,
        "text": _text,
        "tags": _tags,
        "response": _response,
        "number": _number,
    }
)
