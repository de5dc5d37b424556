"""Questions with windows over their passages, and answers as token positions (Devlin et al. 2019, section 4.2; the
released code's sliding windows)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from data_prep.ragged import Ragged
from pipeline.tasks.forms import Question
from pipeline.tasks.tokenizer import SequenceFormat, TextTokenizer
from pipeline.tune.encoding import EncodedRows, repeated, segments_of


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
    ids, offsets = tokenizer.rows_with_offsets([*contexts, *(question.question for question in questions)])
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
    by_passage = np.split(offsets, ids.offsets[1:-1])
    of_questions = tuple(by_passage[number] for number in passage.tolist())
    found = [
        each.answers and answer_tokens(characters, each.answers[0].start, each.answers[0].text)
        for each, characters in zip(questions, of_questions, strict=True)
    ]
    learnt = np.array([each or (-1, -1) for each in found], dtype=np.int64).reshape(-1, 2)[question]
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
        offsets=of_questions,
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
