"""Infilling and span corruption of a 256 x 512 batch, against the same noise sample by sample.

The peers take the steps of BART's and T5's released codes for every sample. Before anything is timed, both sides must
show the rates and span lengths of the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.objectives.bart_denoising import BartDenoising
from pipeline.objectives.base import Batch
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from tests.benchmarks.batches import BATCH, BOS, EOS, PAD, SENTENCE, packed_rows, vocabulary
from tests.benchmarks.harness import Comparison, compare

LENGTH = 512


def run() -> list[Comparison]:
    """Tokens per second of BART's default noise and of T5's span corruption, one thread."""
    torch.set_num_threads(1)
    return [_infilling(), _span_corruption()]


def _infilling() -> Comparison:
    config = BartDenoising()
    known, packed = vocabulary(config.extra_tokens(())), packed_rows(LENGTH)
    peer, rows = InfillingPeer(known), torch.from_numpy(packed.input_ids.astype(np.int64))

    def ours() -> Batch:
        return config.corrupt(packed, Noise.of("bench"), known)

    for corrupted in (ours().inputs["input_ids"], peer(rows)["input_ids"].numpy()):
        _check_infilling(corrupted, packed.input_ids, known)
    what, against = "BART's infilling and permutation, 256 x 512", "the same per sample in PyTorch"
    return compare(what, against, "tokens", BATCH * LENGTH, ours, lambda: peer(rows))


def _span_corruption() -> Comparison:
    config = SpanCorruption()
    length = config.reading(LENGTH).length
    known, packed = vocabulary(config.extra_tokens(())), packed_rows(length)
    peer, rows = SpanPeer(known), packed.input_ids.astype(np.int64)

    def ours() -> Batch:
        return config.corrupt(packed, Noise.of("bench"), known)

    made = ours()
    targets = np.zeros(made.inputs["decoder_input_ids"].size, dtype=np.int64)
    targets[made.inputs["predicted_positions"]] = made.inputs["targets"]
    for written in (targets.reshape(BATCH, -1), peer(rows)["targets"]):
        _check_spans(written, [known[f"<extra_id_{number}>"] for number in range(100)])
    what, against = "T5's span corruption, 256 x 512", "the same per sample in NumPy"
    return compare(what, against, "tokens", BATCH * length, ours, lambda: peer(rows))


class InfillingPeer:
    """BART's noise on one sample at a time in PyTorch, as its released code goes about it: spans of words start at
    random words, may run into each other, and are walked along word by word."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._starts_word = torch.from_numpy(vocabulary.starts_word)
        self._mask = vocabulary["mask"]
        self._lengths = torch.distributions.Categorical(
            torch.tensor([math.exp(-3) * 3**length / math.factorial(length) for length in range(20)])
        )

    def __call__(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """The batch, padded."""
        sources = [self._infill(self._permute(row)) for row in rows]
        input_ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
        decoder = torch.cat([rows[:, -1:], rows[:, :-1]], dim=1)
        return {"input_ids": input_ids, "decoder_input_ids": decoder, "targets": rows}

    def _permute(self, row: torch.Tensor) -> torch.Tensor:
        sentences = list(row[1:-1].split(SENTENCE))
        order = torch.randperm(len(sentences)).tolist()
        return torch.cat([row[:1], *[sentences[number] for number in order], row[-1:]])

    def _infill(self, row: torch.Tensor) -> torch.Tensor:
        begins_word = self._starts_word[row]
        begins_word[[0, -1]] = False
        words = begins_word.nonzero().squeeze(1)
        lengths, num_inserted = self._span_lengths(math.ceil(0.3 * len(words)))
        at = words[torch.randperm(len(words))[: len(lengths)]]
        kept = torch.ones(len(row), dtype=torch.bool)
        row[at] = self._mask
        begins_word[-1] = True
        left = lengths - 1
        while len(at):
            left = left - begins_word[at + 1].long()
            going = (left >= 0) & (at + 1 < len(row) - 1)
            at, left = at[going] + 1, left[going]
            kept[at] = False
        return self._insert(row[kept], num_inserted)

    def _span_lengths(self, budget: int) -> tuple[torch.Tensor, int]:
        lengths = self._lengths.sample((budget,))
        while lengths.sum() < budget:
            lengths = torch.cat([lengths, self._lengths.sample((budget,))])
        covered = lengths.cumsum(0)
        last = int((covered < budget).sum())
        lengths[last] -= covered[last] - budget
        lengths = lengths[: last + 1]
        return lengths[lengths > 0], int((lengths == 0).sum())

    def _insert(self, row: torch.Tensor, count: int) -> torch.Tensor:
        longer = torch.empty(len(row) + count, dtype=row.dtype)
        is_mask = torch.zeros(len(longer), dtype=torch.bool)
        is_mask[torch.randperm(len(longer) - 2)[:count] + 1] = True
        longer[is_mask] = self._mask
        longer[~is_mask] = row
        return longer


class SpanPeer:
    """T5's span corruption of one sample at a time in NumPy, by the steps of its released code: marks are shuffled to
    cut the text into segments, segments are numbered and counted, every second one is hidden behind a sentinel."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._first_sentinel = vocabulary["<extra_id_0>"]

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The batch; all texts are equally long."""
        sources, targets = [], []
        for row in rows:
            text = row[(row != BOS) & (row != EOS)]
            hidden = self._mask(len(text))
            sources.append(self._with_sentinels(text, hidden))
            targets.append(self._with_sentinels(text, ~hidden))
        written = np.stack(targets)
        decoder = np.concatenate([np.full((len(rows), 1), PAD), written[:, :-1]], axis=1)
        return {"input_ids": np.stack(sources), "decoder_input_ids": decoder, "targets": written}

    def _mask(self, length: int) -> np.ndarray:
        num_hidden = round(length * 0.15)
        spans = round(num_hidden / 3)
        shown, hidden = self._segments(length - num_hidden, spans), self._segments(num_hidden, spans)
        stops = np.cumsum(np.stack([shown, hidden], axis=1).reshape(-1))
        begins = np.zeros(length, dtype=np.int8)
        begins[stops[:-1]] = 1
        return np.cumsum(begins) % 2 == 1

    def _segments(self, total: int, parts: int) -> np.ndarray:
        begins = np.arange(total - 1) < parts - 1
        np.random.shuffle(begins)
        _, lengths = np.unique(np.cumsum(np.pad(begins, [[1, 0]])), return_counts=True)
        return lengths

    def _with_sentinels(self, text: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        begins = hidden & ~np.pad(hidden[:-1], [[1, 0]])
        # Sentinels count downwards.
        replaced = np.where(begins, self._first_sentinel + 1 - np.cumsum(begins), text)
        return np.append(replaced[~hidden | begins], EOS)


def _check_infilling(corrupted: np.ndarray, original: np.ndarray, vocabulary: Vocabulary) -> None:
    """30% of the words, in spans of mean 3; fewer and longer ones where they run into each other, as the peer's do."""
    begins_word = vocabulary.starts_word & ~vocabulary.is_special
    words = begins_word[original].sum()
    hidden = words - begins_word[corrupted].sum()
    masks = (corrupted == vocabulary["mask"]).sum()
    assert 0.24 < hidden / words < 0.305, hidden / words
    assert 2.8 < hidden / masks < 3.3, hidden / masks


def _check_spans(targets: np.ndarray, sentinels: Sequence[int]) -> None:
    """15% in spans of mean 3 whose lengths are those of random compositions."""
    is_sentinel = np.isin(targets, sentinels)
    lengths = np.diff(np.flatnonzero(is_sentinel.ravel() | (targets.ravel() == EOS))) - 1
    lengths = lengths[lengths > 0]
    assert abs(lengths.sum() / targets.shape[0] / 568 - 0.15) < 0.001
    assert abs(lengths.mean() - 3) < 0.05
    assert abs((lengths == 1).mean() - 27 / 84) < 0.02
