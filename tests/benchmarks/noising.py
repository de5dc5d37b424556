"""Masking a 256 x 512 batch: tokens against the collator that most people use, words and spans against a loop over
samples.

Before anything is timed, both sides must show the rates, shares and span lengths of the papers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import orjson
import torch

from pipeline.objectives.base import Batch, Objective
from pipeline.objectives.mlm import MaskedLM
from pipeline.objectives.span import SpanMasking
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.benchmarks.batches import BATCH, SPECIAL, packed_rows, vocabulary
from tests.benchmarks.harness import Comparison, compare, peer_name, processor_seconds

LENGTH = 512
RATE = 0.15
OUR_CALLS = 50
"""Batches that are measured at a time: about as long as a peer takes for one."""


def run() -> list[Comparison]:
    """Tokens per second of dynamic masking, 15% with 80/10/10 of tokens, words or spans, one thread."""
    torch.set_num_threads(1)
    packed, known = packed_rows(LENGTH), vocabulary()

    def ours(settings: Objective) -> Callable[[], Batch]:
        return lambda: settings.corrupt(packed, Noise.of("train", 1), known)

    tokens, words, spans = (ours(each) for each in (MaskedLM(), MaskedLM(units="word"), SpanMasking()))
    collated = _collator(packed, known)
    word_loop, span_loop = WordLoop(packed, known), SpanLoop(packed, known)

    for hidden in (_hidden(tokens(), packed), _collated(collated(), packed), _hidden(words(), packed)):
        _check_rate(hidden, packed)
        _check_shares(hidden, known)
    _check_shares(word_loop(), known)
    for hidden in (_hidden(words(), packed), word_loop()):
        _check_words(hidden, packed, known)
    for hidden in (_hidden(spans(), packed), span_loop()):
        _check_rate(hidden, packed)
        _check_words(hidden, packed, known)
        _check_spans(hidden, packed, known)

    def measured(what: str, peer: str, one: Callable[[], object], other: Callable[[], object]) -> Comparison:
        # Processor seconds, because other processes would disturb short calls more than long ones.
        return compare(
            f"noising, {what}, 256 x 512",
            peer,
            "tokens",
            BATCH * LENGTH,
            lambda: processor_seconds(one, OUR_CALLS),
            lambda: processor_seconds(other),
        )

    return [
        measured("masked LM", peer_name("transformers", "DataCollatorForLanguageModeling"), tokens, collated),
        measured("whole words", "the steps of transformers 4's whole-word collator", words, word_loop),
        measured("SpanBERT's spans", "the paper's steps sample by sample", spans, span_loop),
    ]


Hidden = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of the flattened batch: bool where something is predicted, what is read there, and what belongs there."""


def _hidden(batch: Batch, packed: Packed) -> Hidden:
    positions = batch.inputs["predicted_positions"]
    chosen = np.zeros(packed.input_ids.size, dtype=bool)
    chosen[positions] = True
    return chosen, batch.inputs["input_ids"].reshape(-1)[positions], batch.inputs["targets"]


def _collated(made: Mapping[str, torch.Tensor], packed: Packed) -> Hidden:
    chosen = (made["labels"] != -100).numpy().reshape(-1)
    return chosen, made["input_ids"].numpy().reshape(-1)[chosen], packed.input_ids.reshape(-1)[chosen]


def _check_rate(hidden: Hidden, packed: Packed) -> None:
    share = hidden[0].sum() / (packed.input_ids.size - 2 * len(packed.input_ids))
    assert abs(share - RATE) < 0.004, share


def _check_shares(hidden: Hidden, vocabulary: Vocabulary) -> None:
    _, read, original = hidden
    masked, kept = (read == vocabulary["mask"]).mean(), (read == original).mean()
    assert abs(masked - 0.8) < 0.012, masked
    assert abs(kept - 0.1) < 0.012, kept


def _check_words(hidden: Hidden, packed: Packed, vocabulary: Vocabulary) -> None:
    """Words are hidden whole, and long ones as often as short ones would be."""
    chosen, ids = hidden[0], packed.input_ids.reshape(-1)
    goes_on = ~vocabulary.starts_word[ids[1:]] & ~vocabulary.is_special[ids[:-1]]
    assert (chosen[1:] == chosen[:-1])[goes_on].all()
    assert abs(chosen.mean() - RATE) < 0.008, chosen.mean()


def _check_spans(hidden: Hidden, packed: Packed, vocabulary: Vocabulary) -> None:
    """About 3.8 words; the last span of a row is shortened, and spans of the loop may run into each other."""
    chosen, ids = hidden[0], packed.input_ids.reshape(-1)
    begins_span = chosen & ~np.append(False, chosen[:-1])
    begins_word = chosen & (vocabulary.starts_word[ids] | begins_span)
    mean = begins_word.sum() / begins_span.sum()
    assert 3.4 < mean < 4.4, mean


def _collator(packed: Packed, vocabulary: Vocabulary) -> Callable[[], Mapping[str, torch.Tensor]]:
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(_tokenizer(vocabulary))
    examples = [{"input_ids": row} for row in torch.from_numpy(packed.input_ids.astype(np.int64))]
    return lambda: collator(examples)


class WordLoop:
    """Whole-word masking of one sample after the other, in the steps of the collator that transformers 4 had for it:
    tokens become texts, texts words, words are shuffled and taken until the budget is spent; then the whole batch is
    masked by 80/10/10."""

    def __init__(self, packed: Packed, vocabulary: Vocabulary) -> None:
        self._rows = torch.from_numpy(packed.input_ids.astype(np.int64))
        self._tokenizer = _tokenizer(vocabulary)
        self._ordinary, self._mask = torch.from_numpy(vocabulary.ordinary), vocabulary["mask"]

    def __call__(self) -> Hidden:
        chosen = torch.stack([self._choose(row.tolist()) for row in self._rows])
        special = [
            self._tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True)
            for row in self._rows.tolist()
        ]
        chosen &= ~torch.tensor(special, dtype=torch.bool)
        read = self._rows.clone()
        is_mask = torch.bernoulli(torch.full(read.shape, 0.8)).bool() & chosen
        read[is_mask] = self._mask
        is_random = torch.bernoulli(torch.full(read.shape, 0.5)).bool() & chosen & ~is_mask
        drawn = self._ordinary[torch.randint(len(self._ordinary), read.shape)]
        read[is_random] = drawn[is_random]
        return chosen.numpy().reshape(-1), read[chosen].numpy(), self._rows[chosen].numpy()

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

    def __init__(self, packed: Packed, vocabulary: Vocabulary) -> None:
        self._rows = packed.input_ids.tolist()
        self._is_special, self._starts_word = vocabulary.is_special.tolist(), vocabulary.starts_word.tolist()
        self._ordinary, self._mask = vocabulary.ordinary.tolist(), vocabulary["mask"]

    def __call__(self) -> Hidden:
        generator = np.random.default_rng(0)
        chosen = np.zeros((BATCH, LENGTH), dtype=bool)
        read = np.array(self._rows)
        probabilities = 0.8 ** np.arange(10)
        probabilities /= probabilities.sum()
        for number, row in enumerate(self._rows):
            starts = [c for c, t in enumerate(row) if self._starts_word[t] and not self._is_special[t]]
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
                            read[number, column] = self._mask
                        elif share < 0.9:
                            read[number, column] = self._ordinary[generator.integers(len(self._ordinary))]
        flat = chosen.reshape(-1)
        return flat, read.reshape(-1)[flat], np.array(self._rows).reshape(-1)[flat]


def _tokenizer(vocabulary: Vocabulary):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    ids = orjson.loads(vocabulary.tokenizer_json)["model"]["vocab"]
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    names = {f"{role}_token": text for role, text in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
