"""Question answering by spans: where in the passage the answer begins and ends (Devlin et al. 2019, sections 4.2 and
4.3). Long passages are read in sliding windows, as in the released code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import orjson
import torch
import torch.nn.functional as F
from scipy.special import expit, softmax
from torch import Tensor, nn

from data_prep.ragged import Ragged
from models.classifiers import SpanClassifier, best_spans, span_loss
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import Question, SpanTaskConfig
from pipeline.tasks.metrics.squad import answer_metrics, best_f1_threshold, unanswerable_metrics
from pipeline.tasks.tokenizer import SequenceFormat, TextTokenizer, sequence_format
from pipeline.tune.encoding import EncodedRows, repeated, segments_of
from pipeline.tune.forms.base import (
    HIDDEN,
    STACK_PARTS,
    Metrics,
    PaddedBatch,
    PreparedTask,
    TaskContext,
    excerpt,
)
from pipeline.tune.forms.classification import token_reader


@dataclass(frozen=True, slots=True)
class Windows(EncodedRows):
    """Each question followed by a part of its passage; long passages give several windows."""

    segment_ids: Ragged | None
    """Per window the segment of each token, int64; None where the network knows no segments."""
    question: np.ndarray
    """int64 [windows]: the index of the question."""
    begin: np.ndarray
    """int64 [windows]: first position of the passage in the window."""
    first: np.ndarray
    """int64 [windows]: the index of the passage's token at `begin`."""
    size: np.ndarray
    """int64 [windows]: tokens of the passage in the window."""
    own: np.ndarray
    """int64 [windows, 2]: the passage's tokens, from and up to (exclusive), that have most context in this window; a
    predicted answer begins at one of them."""
    answer: np.ndarray
    """int64 [windows, 2]: positions in the window of the answer's first and last token; 0, the first special token,
    where the window does not hold all of it, or there is no answer."""
    offsets: tuple[np.ndarray, ...]
    """Per question the characters of its passage's tokens, int64 [tokens, 2]."""


def encode_questions(
    tokenizer: TextTokenizer,
    sequences: SequenceFormat,
    questions: Sequence[Question],
    *,
    max_length: int,
    max_query_length: int,
    doc_stride: int,
) -> Windows:
    """Encode; no window gets more than `max_length` tokens, special tokens included."""
    contexts = {context: number for number, context in enumerate(dict.fromkeys(q.context for q in questions))}
    passage = np.array([contexts[question.context] for question in questions], dtype=np.int64)
    found = tokenizer.ids_with_offsets([*contexts, *(question.question for question in questions)])
    ids = Ragged.of([each for each, _ in found])
    asked = np.arange(len(contexts), len(ids))
    words = np.minimum(ids.lengths[asked], max_query_length)
    begin = len(sequences.first) + words + len(sequences.between)
    sizes, room = ids.lengths[passage], max_length - begin - len(sequences.last)
    spans = [window_spans(*each, doc_stride) for each in zip(sizes.tolist(), room.tolist(), strict=True)]
    question = np.repeat(np.arange(len(questions)), [len(each) for each in spans])
    # A single window holds all tokens by itself.
    own = [pair for each in spans for pair in (own_tokens(each).tolist() if len(each) > 1 else each)]
    first, size = np.array(list(chain.from_iterable(spans)), dtype=np.int64).reshape(-1, 2).T
    rows = Ragged.beside(
        [
            repeated(sequences.first, len(question)),
            ids.slices(asked[question], np.zeros_like(question), words[question]),
            repeated(sequences.between, len(question)),
            ids.slices(passage[question], first, size),
            repeated(sequences.last, len(question)),
        ]
    )
    offsets = tuple(found[number][1] for number in passage.tolist())
    answers = [
        each.answers and answer_tokens(characters, each.answers[0].start, each.answers[0].text)
        for each, characters in zip(questions, offsets, strict=True)
    ]
    learnt = np.array([each or (-1, -1) for each in answers], dtype=np.int64).reshape(-1, 2)[question]
    inside = (first <= learnt[:, 0]) & (learnt[:, 1] < first + size) & (learnt[:, 0] >= 0)
    return Windows(
        input_ids=rows,
        segment_ids=segments_of(rows, begin[question]) if sequences.has_segments else None,
        question=question,
        begin=begin[question],
        first=first,
        size=size,
        own=np.array(own, dtype=np.int64).reshape(-1, 2),
        answer=np.where(inside[:, None], learnt + (begin[question] - first)[:, None], 0),
        offsets=offsets,
    )


def window_spans(num_tokens: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """(first token, number of tokens) of each window over a passage; the last one ends with the passage."""
    spans, first = [], 0
    while True:
        size = min(capacity, num_tokens - first)
        spans.append((first, size))
        if first + size >= num_tokens:
            return spans
        first += min(size, stride)


def own_tokens(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """int64 [windows, 2]: the tokens, from and up to (exclusive), with more context in this window than in the others.

    A token's context is the smaller number of tokens to its left and right in the window, plus a hundredth of the
    window's size; of windows with equal context, the first counts (released code).
    """
    first, size = np.array(spans, dtype=np.int64).T[..., None]
    token = np.arange((first + size).max())
    left, right = token - first, first + size - 1 - token
    context = np.minimum(left, right) + 0.01 * size
    context[(left < 0) | (right < 0)] = -np.inf
    best = context.argmax(0) if len(token) else np.empty(0, dtype=np.int64)
    # The tokens of each window are contiguous, and ascend with the windows.
    number = np.arange(len(spans))
    return np.stack([np.searchsorted(best, number, "left"), np.searchsorted(best, number, "right")], 1)


def answer_tokens(offsets: np.ndarray, start: int, text: str) -> tuple[int, int] | None:
    """The first and last token of an answer's characters; None where no token has any of them.

    Args:
        offsets: int64 [tokens, 2], ascending.
        start: first character of `text`.
    """
    stop = start + len(text)
    first = int(np.searchsorted(offsets[:, 1], start, "right"))
    last = int(np.searchsorted(offsets[:, 0], stop, "left")) - 1
    return (first, last) if first <= last else None


def text_of(context: str, offsets: np.ndarray, first: int, last: int) -> str:
    """The characters from one token to another, without white space around them."""
    return context[offsets[first, 0] : offsets[last, 1]].strip()


class SpanTask(PreparedTask):
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

    def comparable(self, logits: Tensor, batch: PaddedBatch) -> tuple[Tensor, Tensor]:
        """Distributions over tokens; begin and end count half each."""
        places = logits.float().masked_fill(~batch.inputs["attention_mask"].unsqueeze(-1), HIDDEN)
        places = places.transpose(1, 2).flatten(0, 1)
        return places, places.new_full((len(places),), 0.5)

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
        predictions, _, no_answer = self.answered(outputs)
        if self.config.answerable:
            found = answer_metrics(right, predictions)
        else:
            found = unanswerable_metrics(right, predictions, no_answer)
        return {name: found[name] for name in self.config.metrics}

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, right texts, predicted text, the best texts with their scores and probabilities, the question
        and the part of its context with the first answer; and one JSON object from ids to texts, which SQuAD's own
        evaluation reads. Where questions may have no answer, another one from ids to the probabilities of that."""
        predictions, n_best, no_answer = self.answered(outputs)
        ids = [question.id for question in self.examples]
        lines = [
            {
                "id": question.id,
                "answers": list(question.right),
                "prediction": prediction,
                "n_best": [
                    {"text": text, "score": score, "probability": share}
                    for (text, score), share in zip(
                        best, softmax([score for _, score in best]).tolist(), strict=True
                    )
                ],
                "question": excerpt(question.question),
                "context": excerpt(question.context, question.answers[0].start if question.answers else 0),
            }
            for question, prediction, best in zip(self.examples, predictions, n_best, strict=True)
        ]
        files = {
            "predictions.jsonl": json_lines(lines),
            "answers.json": orjson.dumps(dict(zip(ids, predictions, strict=True))),
        }
        if not self.config.answerable:
            files["na_prob.json"] = orjson.dumps(dict(zip(ids, no_answer.tolist(), strict=True)))
        return files

    def answered(self, outputs: np.ndarray) -> tuple[list[str], list[list[Found]], np.ndarray]:
        """`answer_questions` of the evaluation."""
        return answer_questions(self.config, self.examples, self.evaluation, outputs)


Found = tuple[str, float]
"""A text that may answer a question, and the sum of the scores of begin and end; an empty one says that there is no
answer."""


def answer_questions(
    config: SpanTaskConfig, questions: Sequence[Question], windows: Windows, outputs: np.ndarray
) -> tuple[list[str], list[list[Found]], np.ndarray]:
    """Gather the best texts of all windows of each question, and decide which questions have no answer.

    Args:
        outputs: float32 [windows, n_best + 1, 3], as SpanTask.outputs gives them.

    Returns:
        Per question the predicted text, empty for no answer; its best texts, the best first; and float64 [questions]:
        the probability of having no answer, against the best text.
    """
    n_best, nulls = _best_texts(questions, windows, outputs, config.n_best)
    best = [found[0][0] for found in n_best]
    scores = np.array([score if text else -np.inf for (text, score), *_ in n_best])
    no_answer = expit(nulls - scores)
    if config.answerable:
        return best, n_best, no_answer
    threshold = config.no_answer_threshold()
    if threshold is None:
        threshold = best_f1_threshold([question.right for question in questions], best, no_answer)
    predictions = [
        "" if probability > threshold else text for text, probability in zip(best, no_answer, strict=True)
    ]
    with_null = [
        sorted([*((text, score) for text, score in texts if text), ("", null)], key=lambda found: -found[1])
        for texts, null in zip(n_best, nulls.tolist(), strict=True)
    ]
    return predictions, with_null, no_answer


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
                best.setdefault(text, (text, score))
        texts.append(list(best.values()) or [("", 0.0)])
    return texts, nulls
