"""Question answering by spans: where in the passage the answer begins and ends (Devlin et al. 2019, sections 4.2 and
4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import torch
import torch.nn.functional as F
from scipy.special import expit
from torch import Tensor, nn

from models.classifiers import SpanClassifier, best_spans, span_loss
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import Question, SpanTaskConfig
from pipeline.tasks.metrics.squad import answer_metrics, best_f1_threshold, unanswerable_metrics
from pipeline.tasks.tokenizer import sequence_format
from pipeline.tune.forms.base import (
    HIDDEN,
    STACK_PARTS,
    Comparable,
    ComparableTask,
    Metrics,
    PaddedBatch,
    TaskContext,
    excerpt,
)
from pipeline.tune.forms.classification import token_reader
from pipeline.tune.forms.windows import Windows, encode_questions, text_of


class SpanTask(ComparableTask):
    """A task of question answering with its windows."""

    train: Windows
    evaluation: Windows

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        sequences = sequence_format(context.network, context.tokenizer)
        self.train, self.evaluation = (
            encode_questions(
                context.tokenizer,
                sequences,
                questions,
                max_length=context.settings.max_length,
                max_query_length=self.config.max_query_length,
                doc_stride=self.config.doc_stride,
            )
            for questions in (context.data.train, context.data.evaluation)
        )
        self.read = token_reader(context.network, context.tokenizer)
        self.parts = STACK_PARTS[context.network.network]

    def build(self) -> nn.Module:
        return SpanClassifier(self.network)

    def batch(self, part: Windows, rows: np.ndarray) -> PaddedBatch:
        """Windows with the positions of their answers, and masks of where a predicted answer may begin and end."""
        inputs = self.read(part, rows)
        token = np.arange(inputs["input_ids"].shape[1]) - part.begin[rows, None] + part.first[rows, None]
        own = part.own[rows, :, None]
        targets = {
            "answer": part.answer[rows],
            "begins": (token >= own[:, 0]) & (token < own[:, 1]),
            "ends": (token >= part.first[rows, None]) & (token < (part.first + part.size)[rows, None]),
        }
        return PaddedBatch(inputs, {name: torch.from_numpy(array) for name, array in targets.items()})

    def logits(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[batch, length, 2] scores of begin and end."""
        return model(**batch.inputs)

    def loss_of(self, model: nn.Module, logits: Tensor, batch: PaddedBatch) -> Tensor:
        """Mean of the cross-entropies of begin and end, summed over windows."""
        return span_loss(logits, batch.targets["answer"], batch.inputs["attention_mask"])

    def comparable(self, logits: Tensor, batch: PaddedBatch) -> Comparable:
        """Distributions over tokens; begin and end count half each."""
        places = logits.float().masked_fill(~batch.inputs["attention_mask"].unsqueeze(-1), HIDDEN)
        places = places.transpose(1, 2).flatten(0, 1)
        return Comparable(places, places.new_full((len(places),), 0.5))

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, n_best + 1, 3]: first and last position in the window, and score, of the best spans, and last
        of the first special token, which means no answer."""
        begins, ends = batch.targets["begins"], batch.targets["ends"]
        longest, n_best = self.config.max_answer_length, self.config.n_best
        logits = self.logits(model, batch).float()
        best = best_spans(logits, begins, ends, max_length=longest, n_best=n_best)
        none = F.pad(logits[:, 0].sum(-1, keepdim=True), (2, 0))
        return torch.cat([best, none.unsqueeze(1)], 1)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """Exact match and F1 of the best answers; where questions may have none, as SQuAD 2.0 measures them."""
        right = [question.right for question in self.examples]
        answered = self.answered(outputs)
        if self.config.answerable:
            found = answer_metrics(right, answered.predictions)
        else:
            found = unanswerable_metrics(right, answered.predictions, answered.no_answer)
        return {name: found[name] for name in self.config.metrics}

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, right texts, predicted text, the best texts with their scores and probabilities, the question
        and the part of its context with the first answer; and one JSON object from ids to texts, which SQuAD's own
        evaluation reads. Where questions may have no answer, another one from ids to the probabilities of that."""
        answered = self.answered(outputs)
        ids = [question.id for question in self.examples]
        lines = [
            {
                "id": question.id,
                "answers": list(question.right),
                "prediction": prediction,
                "n_best": with_probabilities(best),
                "question": excerpt(question.question),
                "context": excerpt(question.context, question.answers[0].start if question.answers else 0),
            }
            for question, prediction, best in zip(
                self.examples, answered.predictions, answered.n_best, strict=True
            )
        ]
        files = {
            "predictions.jsonl": json_lines(lines),
            "answers.json": orjson.dumps(dict(zip(ids, answered.predictions, strict=True))),
        }
        if not self.config.answerable:
            probabilities = dict(zip(ids, answered.no_answer.tolist(), strict=True))
            files["na_prob.json"] = orjson.dumps(probabilities)
        return files

    def answered(self, outputs: np.ndarray) -> Answered:
        """Texts from spans."""
        return answer_questions(self.config, self.examples, self.evaluation, outputs)


@dataclass(frozen=True, slots=True)
class Found:
    """A text that may answer a question; an empty one says that there is no answer."""

    text: str
    score: float
    """Sum of the scores of begin and end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Predictions for every question."""

    predictions: list[str]
    """Per question the predicted text; empty for no answer."""
    n_best: list[list[Found]]
    """Per question its best texts, the best first."""
    no_answer: np.ndarray
    """float64 [questions]: the probability of having no answer, against the best text."""


def answer_questions(
    config: SpanTaskConfig, questions: Sequence[Question], windows: Windows, outputs: np.ndarray
) -> Answered:
    """Gather the best texts of all windows of each question, and decide which questions have no answer.

    Args:
        outputs: float32 [windows, n_best + 1, 3], as SpanTask.outputs gives them.
    """
    n_best, nulls = _best_texts(questions, windows, outputs, config.n_best)
    best = [found[0].text for found in n_best]
    scores = np.array([found[0].score if found[0].text else -np.inf for found in n_best])
    no_answer = expit(nulls - scores)
    if config.answerable:
        return Answered(best, n_best, no_answer)
    threshold = config.no_answer_threshold()
    if threshold is None:
        threshold = best_f1_threshold([question.right for question in questions], best, no_answer)
    predictions = [
        "" if probability > threshold else text for text, probability in zip(best, no_answer, strict=True)
    ]
    with_null = [
        sorted([*filter(lambda found: found.text, texts), Found("", null)], key=lambda found: -found.score)
        for texts, null in zip(n_best, nulls.tolist(), strict=True)
    ]
    return Answered(predictions, with_null, no_answer)


def with_probabilities(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Texts with their scores, and the softmax of these."""
    scores = np.array([each.score for each in found])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [
        {"text": each.text, "score": each.score, "probability": share}
        for each, share in zip(found, shares, strict=True)
    ]


def _best_texts(
    questions: Sequence[Question], windows: Windows, outputs: np.ndarray, count: int
) -> tuple[list[list[Found]], np.ndarray]:
    """Per question its best texts, an empty one where nothing was found, and float64 [questions], the lowest score that
    one of its windows gives to having no answer."""
    spans: list[list[tuple[float, int, int]]] = [[] for _ in questions]
    nulls = np.full(len(questions), np.inf)
    for window, rows in enumerate(outputs):
        shift = int(windows.first[window] - windows.begin[window])
        question = windows.question[window]
        spans[question] += [
            (float(score), int(first) + shift, int(last) + shift)
            for first, last, score in rows[:-1]
            if np.isfinite(score)
        ]
        nulls[question] = min(nulls[question], float(rows[-1, 2]))
    texts = []
    for number, question in enumerate(questions):
        best: dict[str, Found] = {}
        for score, first, last in sorted(spans[number], key=lambda span: (-span[0], *span[1:])):
            text = text_of(question.context, windows.offsets[number], first, last)
            if text and len(best) < count:
                best.setdefault(text, Found(text, score))
        texts.append(list(best.values()) or [Found("", 0.0)])
    return texts, nulls
