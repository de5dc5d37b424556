"""Question answering by spans: where in the passage the answer begins and ends (Devlin et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.span_classifier import SpanClassifier, best_spans, span_loss
from pipeline.finetune.batches import pad_rows
from pipeline.finetune.forms.base import (
    ENCODER,
    EVALUATION_BATCH_SIZE,
    Metrics,
    PaddedBatch,
    TaskContext,
    json_lines,
)
from pipeline.finetune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.finetune.forms.spans.windows import Windows, encode_questions, text_of
from pipeline.finetune.metrics import squad
from pipeline.finetune.tokenizer import sequence_format

ANSWER_METRICS = MappingProxyType({"exact_match": squad.exact_match, "f1": squad.f1})
"""The metrics that a task of this form can name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A text that may answer a question."""

    text: str
    score: float
    """Sum of the scores of begin and end."""


@dataclass(frozen=True, slots=True)
class SpanTask:
    """A task of question answering with its windows."""

    network: TransformerConfig
    config: SpanTaskConfig
    train: Windows
    evaluation: Windows
    questions: Sequence[Question]
    """The questions of `evaluation`."""
    metrics: tuple[str, ...]
    pad_id: int

    parts = (ENCODER,)
    test = None
    evaluation_batch_size = EVALUATION_BATCH_SIZE

    @classmethod
    def prepare(cls, context: TaskContext) -> SpanTask:
        """Encode the questions."""
        data, config, network = context.data, context.config, context.network
        assert isinstance(network, TransformerConfig), "a workload checks which networks carry this form"
        sequences = sequence_format(network, context.tokenizer)
        train, evaluation = (
            encode_questions(
                context.tokenizer,
                sequences,
                questions,
                max_length=context.settings.max_length,
                max_query_length=config.max_query_length,
                doc_stride=config.doc_stride,
            )
            for questions in (data.train, data.evaluation)
        )
        pad_id = context.tokenizer.pad_id
        return cls(network, config, train, evaluation, data.evaluation, config.metrics, pad_id)

    def build(self) -> nn.Module:
        return SpanClassifier(self.network)

    def batch(self, part: Windows, rows: np.ndarray) -> PaddedBatch:
        """Windows with the positions of their answers, and masks of where a predicted answer may begin and end."""
        input_ids, present = pad_rows(part.input_ids, rows, self.pad_id)
        inputs = {"input_ids": input_ids, "attention_mask": present}
        if part.segment_ids is not None:
            inputs["segment_ids"] = pad_rows(part.segment_ids, rows, 0)[0]
        token = np.arange(input_ids.shape[1]) - part.begin[rows, None] + part.first[rows, None]
        own = part.own[rows, :, None]
        targets = {
            "answer": part.answer[rows],
            "begins": (token >= own[:, 0]) & (token < own[:, 1]),
            "ends": (token >= part.first[rows, None]) & (token < (part.first + part.size)[rows, None]),
        }
        return PaddedBatch(_tensors(inputs), _tensors(targets))

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Mean of the cross-entropies of begin and end, summed over windows."""
        return span_loss(model(**batch.inputs), batch.targets["answer"], batch.inputs["attention_mask"])

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, n_best, 3]: first and last position in the window, and score, of the best spans."""
        begins, ends = batch.targets["begins"], batch.targets["ends"]
        longest, n_best = self.config.max_answer_length, self.config.n_best
        return best_spans(model(**batch.inputs), begins, ends, max_length=longest, n_best=n_best)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """Exact match and F1 of the best answers."""
        predictions = [found[0].text for found in self.answers(outputs)]
        right = [[answer.text for answer in question.answers] for question in self.questions]
        return {name: ANSWER_METRICS[name](right, predictions) for name in self.metrics}

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, right texts, best text, and the best texts with their scores and probabilities; and one JSON
        object from ids to texts, which SQuAD's own evaluation reads."""
        found = self.answers(outputs)
        lines = [
            {
                "id": question.id,
                "answers": [answer.text for answer in question.answers],
                "prediction": best[0].text,
                "n_best": _with_probabilities(best),
            }
            for question, best in zip(self.questions, found, strict=True)
        ]
        official = {question.id: best[0].text for question, best in zip(self.questions, found, strict=True)}
        return {"predictions.jsonl": json_lines(lines), "answers.json": orjson.dumps(official)}

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        return {}

    def baselines(self) -> dict[str, Metrics]:
        return {}

    def answers(self, outputs: np.ndarray) -> list[list[Found]]:
        """Per question the best texts of all its windows, the best first; an empty one where nothing was found."""
        windows = self.evaluation
        by_question: list[list[tuple[float, int, int]]] = [[] for _ in self.questions]
        for window, spans in enumerate(outputs):
            shift = int(windows.first[window] - windows.begin[window])
            by_question[windows.question[window]] += [
                (float(score), int(first) + shift, int(last) + shift)
                for first, last, score in spans
                if np.isfinite(score)
            ]
        return [
            self._best_texts(question, windows.offsets[number], spans)
            for number, (question, spans) in enumerate(zip(self.questions, by_question, strict=True))
        ]

    def _best_texts(
        self, question: Question, offsets: np.ndarray, spans: Sequence[tuple[float, int, int]]
    ) -> list[Found]:
        best: dict[str, Found] = {}
        for score, first, last in sorted(spans, key=lambda span: (-span[0], *span[1:])):
            text = text_of(question.context, offsets, first, last)
            if text and len(best) < self.config.n_best:
                best.setdefault(text, Found(text, score))
        return list(best.values()) or [Found("", 0.0)]


def _with_probabilities(found: Sequence[Found]) -> list[dict[str, Any]]:
    scores = np.array([each.score for each in found])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [
        {"text": each.text, "score": each.score, "probability": share}
        for each, share in zip(found, shares, strict=True)
    ]


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
