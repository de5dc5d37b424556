"""Noises of a 256 x 512 batch: tokens against the collator that most people use, words and spans against loops over
samples, which take the steps of the released codes.

Before anything is timed, both sides must hide about as many tokens in about as many pieces.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import torch
from torch.nn.utils.rnn import pad_sequence

from pipeline.objectives.bart_denoising import BartDenoising
from pipeline.objectives.base import Objective
from pipeline.objectives.mlm import MaskedLM
from pipeline.objectives.span import SpanMasking
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.vocabulary import Vocabulary, make_vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.benchmarks.harness import Comparison, compare, peer_name, processor_seconds

BATCH, LENGTH, VOCAB_SIZE = 256, 512, 50_265
SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
BOS, PAD, EOS, UNK, MASK = range(len(SPECIAL))
SENTENCE = 20
"""Tokens of a sentence."""
RATE = 0.15
OUR_CALLS = 50
"""Batches that are measured at a time: about as long as a peer takes for one."""

Peer = Callable[[], Mapping[str, Any]]
"""Makes a batch of inputs and targets."""


def run() -> list[Comparison]:
    """Tokens per second of dynamic noise by the papers' settings, one thread."""
    torch.set_num_threads(1)
    collator = peer_name("transformers", "DataCollatorForLanguageModeling")
    steps = "the steps of transformers 4's whole-word collator"
    return [
        _measure("noising, masked LM, 256 x 512", MaskedLM(), collator, _collator),
        _measure("noising, whole words, 256 x 512", MaskedLM(units="word"), steps, WordLoop),
        _measure(
            "noising, SpanBERT's spans, 256 x 512",
            SpanMasking(),
            "the paper's steps sample by sample",
            SpanLoop,
        ),
        _measure(
            "BART's infilling and permutation, 256 x 512",
            BartDenoising(),
            "the same per sample in PyTorch",
            InfillingLoop,
        ),
        _measure(
            "T5's span corruption, 256 x 512", SpanCorruption(), "the same per sample in NumPy", SentinelLoop
        ),
    ]


def _measure(
    what: str, objective: Objective, peer: str, make_peer: Callable[[np.ndarray, Vocabulary], Peer]
) -> Comparison:
    known = _vocabulary(objective)
    packed = _packed_rows(length := objective.reading(LENGTH).length)
    theirs = make_peer(packed.input_ids.astype(np.int64), known)

    def ours() -> np.ndarray:
        return objective.corrupt(packed, Noise.of("train", 1), known).inputs["input_ids"]

    marks = [known[role] for role in known.roles if role == "mask" or role.startswith("<extra_id_")]
    for one, other in zip(_amounts(ours(), marks), _amounts(theirs()["input_ids"], marks), strict=True):
        # Spans of the loops may run into each other.
        assert abs(one / other - 1) < 0.25, (what, one, other)
    # Processor seconds, because other processes would disturb short calls more than long ones.
    return compare(
        what,
        peer,
        "tokens",
        BATCH * length,
        lambda: processor_seconds(ours, OUR_CALLS),
        lambda: processor_seconds(theirs),
    )


def _amounts(input_ids: Any, marks: list[int]) -> tuple[int, int, int]:
    """Number of marks for what is hidden, of runs of them, and of text that is shown."""
    is_mark = np.isin(np.asarray(input_ids), marks)
    runs = is_mark[:, 1:] & ~is_mark[:, :-1]
    return (
        int(is_mark.sum()),
        int(runs.sum()),
        int((~is_mark & (np.asarray(input_ids) >= len(SPECIAL))).sum()),
    )


def _packed_rows(length: int) -> Packed:
    """Rows of one text each, `<s> ... </s>`, that begin with a word."""
    count = VOCAB_SIZE - len(SPECIAL)
    ids = Noise.of("bench").at(np.arange(BATCH * length, dtype=np.uint64)).integers(count) + len(SPECIAL)
    ids = ids.reshape(BATCH, length).astype(np.uint32)
    ids[:, 0], ids[:, -1] = BOS, EOS
    ids[:, 1] += 10 - ids[:, 1] % 10
    starts = np.arange(1, length - 1, SENTENCE)
    return Packed(
        input_ids=ids,
        cu_seqlens=np.arange(0, BATCH * length + 1, length, dtype=np.int32),
        sample_ids=np.arange(BATCH, dtype=np.uint64),
        epochs=np.zeros(BATCH, dtype=np.uint64),
        sentence_starts=(np.arange(BATCH)[:, None] * length + starts).ravel().astype(np.int32),
    )


def _vocabulary(objective: Objective) -> Vocabulary:
    """Byte-pair tokens of which seven in ten begin a word, about as in English text."""
    words = (f"{'Ġ' if number % 10 < 7 else ''}w{number}" for number in range(len(SPECIAL), VOCAB_SIZE + 10))
    ids = {text: number for number, text in enumerate([*SPECIAL.values(), *words])}
    parts = {"model": {"type": "BPE", "vocab": ids, "merges": []}, "added_tokens": []}
    roles = {role: ids[text] for role, text in SPECIAL.items()}
    return make_vocabulary(orjson.dumps(parts).decode(), roles, objective.extra_tokens(()))


def _collator(rows: np.ndarray, vocabulary: Vocabulary) -> Peer:
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(_tokenizer(vocabulary))
    examples = [{"input_ids": row} for row in torch.from_numpy(rows)]
    return lambda: collator(examples)


def _tokenizer(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    ids = orjson.loads(vocabulary.tokenizer_json)["model"]["vocab"]
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    names = {f"{role}_token": text for role, text in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


class WordLoop:
    """Whole-word masking of one sample after the other, in the steps of the collator that transformers 4 had for it:
    tokens become texts, texts words, words are shuffled and taken until the budget is spent; then the whole batch is
    masked by 80/10/10."""

    def __init__(self, rows: np.ndarray, vocabulary: Vocabulary) -> None:
        self._rows, self._tokenizer = torch.from_numpy(rows), _tokenizer(vocabulary)
        self._ordinary = torch.from_numpy(vocabulary.ordinary)

    def __call__(self) -> Mapping[str, Any]:
        chosen = torch.stack([self._choose(row.tolist()) for row in self._rows])
        special = [
            self._tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True)
            for row in self._rows.tolist()
        ]
        chosen &= ~torch.tensor(special, dtype=torch.bool)
        read = self._rows.clone()
        is_mask = torch.bernoulli(torch.full(read.shape, 0.8)).bool() & chosen
        read[is_mask] = MASK
        is_random = torch.bernoulli(torch.full(read.shape, 0.5)).bool() & chosen & ~is_mask
        drawn = self._ordinary[torch.randint(len(self._ordinary), read.shape)]
        read[is_random] = drawn[is_random]
        return {"input_ids": read, "labels": torch.where(chosen, self._rows, -100)}

    def _choose(self, row: list[int]) -> torch.Tensor:
        words: list[list[int]] = []
        for column, text in enumerate(self._tokenizer.convert_ids_to_tokens(row)):
            if text in ("<s>", "</s>"):
                continue
            if words and not text.startswith("Ġ"):
                words[-1].append(column)
            else:
                words.append([column])
        random.shuffle(words)
        budget = max(1, round(RATE * (len(row) - 2)))
        taken: set[int] = set()
        for word in words:
            if len(taken) == budget:
                break
            if len(taken) + len(word) <= budget:
                taken.update(word)
        return torch.tensor([column in taken for column in range(len(row))])


class SpanLoop:
    """Span masking of one sample after the other, as SpanBERT's paper tells it (section 3.1): a length, then a random
    word to begin with, until the budget is spent; one draw for each span decides what replaces it."""

    def __init__(self, rows: np.ndarray, vocabulary: Vocabulary) -> None:
        self._rows, self._ordinary = rows, vocabulary.ordinary.tolist()
        self._starts_word = (vocabulary.starts_word & ~vocabulary.is_special).tolist()

    def __call__(self) -> Mapping[str, Any]:
        generator = np.random.default_rng(0)
        chosen = np.zeros(self._rows.shape, dtype=bool)
        read = self._rows.copy()
        probabilities = 0.8 ** np.arange(10)
        probabilities /= probabilities.sum()
        for number, row in enumerate(self._rows.tolist()):
            starts = [column for column, token in enumerate(row) if self._starts_word[token]]
            ends = [*starts[1:], LENGTH - 1]
            budget = round(RATE * (LENGTH - 2))
            while budget > 0 and any(
                stop - start <= budget and not chosen[number, start]
                for start, stop in zip(starts, ends, strict=True)
            ):
                words = generator.choice(10, p=probabilities) + 1
                first = generator.integers(len(starts))
                share = generator.random()
                for word in range(first, min(first + words, len(starts))):
                    columns = range(starts[word], ends[word])
                    if chosen[number, starts[word]] or len(columns) > budget:
                        break
                    budget -= len(columns)
                    for column in columns:
                        chosen[number, column] = True
                        if share < 0.8:
                            read[number, column] = MASK
                        elif share < 0.9:
                            read[number, column] = self._ordinary[generator.integers(len(self._ordinary))]
        return {"input_ids": read, "labels": np.where(chosen, self._rows, -100)}


class InfillingLoop:
    """BART's noise on one sample at a time in PyTorch, as its released code goes about it: spans of words start at
    random words, may run into each other, and are walked along word by word."""

    def __init__(self, rows: np.ndarray, vocabulary: Vocabulary) -> None:
        self._rows, self._starts_word = torch.from_numpy(rows), torch.from_numpy(vocabulary.starts_word)
        self._mask = vocabulary["mask"]
        self._lengths = torch.distributions.Categorical(
            torch.tensor([math.exp(-3) * 3**length / math.factorial(length) for length in range(20)])
        )

    def __call__(self) -> Mapping[str, Any]:
        sources = [self._infill(self._permute(row)) for row in self._rows]
        input_ids = pad_sequence(sources, batch_first=True, padding_value=PAD)
        decoder = torch.cat([self._rows[:, -1:], self._rows[:, :-1]], dim=1)
        return {"input_ids": input_ids, "decoder_input_ids": decoder, "targets": self._rows}

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


class SentinelLoop:
    """T5's span corruption of one sample at a time in NumPy, by the steps of its released code: marks are shuffled to
    cut the text into segments, segments are numbered and counted, every second one is hidden behind a sentinel."""

    def __init__(self, rows: np.ndarray, vocabulary: Vocabulary) -> None:
        self._rows, self._first_sentinel = rows, vocabulary["<extra_id_0>"]

    def __call__(self) -> Mapping[str, Any]:
        sources, targets = [], []
        for row in self._rows:
            text = row[(row != BOS) & (row != EOS)]
            hidden = self._mask(len(text))
            sources.append(self._with_sentinels(text, hidden))
            targets.append(self._with_sentinels(text, ~hidden))
        written = np.stack(targets)
        decoder = np.concatenate([np.full((len(written), 1), PAD), written[:, :-1]], axis=1)
        return {"input_ids": np.stack(sources), "decoder_input_ids": decoder, "targets": written}

    def _mask(self, length: int) -> np.ndarray:
        num_hidden = round(length * RATE)
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
