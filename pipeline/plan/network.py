"""A run's network as planning sees it: its parameters, and the sizes of its micro-batches.

Sizes are those of an example micro-batch of random tokens in the shapes that the run's objective makes. Rows are laid
out as packing does: pieces of text that fill the row, or a pair and its padding; the objective itself corrupts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from cluster.artefacts.errors import ClozeError
from cluster.copies import committed_at, manifest_at
from data_prep.layout import TOKENS
from data_prep.token_store import TokenStore
from models.transformer import Choice
from pipeline.checkpoint.references import resolve_model
from pipeline.engine.device import choose_attention
from pipeline.objectives.base import Batch, resolve_references
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.plan.flops import count_flops, without_storage
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import open_vocabulary
from pipeline.samples.formats import PAIR_FORMATS
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

EXAMPLE_ROWS = 4
"""Samples of the micro-batch that is measured for all."""


@dataclass
class Network:
    """The network of a run, without storage."""

    config: PretrainConfig
    on_cuda: bool
    vocabulary: Vocabulary
    vocabulary_note: str
    """Origin of its size; empty if that is from the prepared tokens."""
    model: nn.Module
    attention: Choice
    """The kernel of the attention on that device, and why."""
    _examples: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    _flops: dict[int, float] = field(default_factory=dict)
    """By sequence length, the example micro-batch, and operations of a sample."""

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the trained parameters."""
        named = self.model.named_parameters()
        return tuple((name, tuple(one.shape)) for name, one in named if one.requires_grad)

    @cached_property
    def num_parameters(self) -> int:
        """Elements of the trained parameters."""
        return sum(prod(shape) for _, shape in self.shapes)

    @cached_property
    def largest(self) -> int:
        """Elements of the largest of them."""
        return max(prod(shape) for _, shape in self.shapes)

    @cached_property
    def teacher_elements(self) -> int:
        """Elements of a network that is imitated, which is on the device too."""
        teacher = getattr(self.model, "teacher", None)
        return sum(each.numel() for each in teacher.parameters()) if isinstance(teacher, nn.Module) else 0

    def flops_per_sample(self, sequence_length: int) -> float:
        """Model FLOPs of a sample, forward and backward, as a run's own meters count them."""
        if sequence_length not in self._flops:
            counted = count_flops(self.model, self.example(sequence_length)).total
            self._flops[sequence_length] = counted / EXAMPLE_ROWS
        return self._flops[sequence_length]

    def example(self, sequence_length: int) -> Mapping[str, np.ndarray]:
        """Arguments of the network for a micro-batch of EXAMPLE_ROWS samples of a phase with that sequence length."""
        if sequence_length not in self._examples:
            batch = example_batch(self.config, self.vocabulary, EXAMPLE_ROWS, sequence_length)
            self._examples[sequence_length] = batch.inputs
        return self._examples[sequence_length]


def make_network(
    config: PretrainConfig,
    *,
    on_cuda: bool,
    vocab_size: int | None = None,
    capability: tuple[int, int] | None = None,
) -> Network:
    """Build the network of a run without storage.

    Raises:
        ConfigError: objective, network or attention kernel do not fit.
        ReferenceNotFoundError: there is no such teacher.
    """
    vocabulary, note = vocabulary_of(config, vocab_size)
    shape = replace(config.model, vocab_size=vocabulary.size)
    attention = choose_attention(shape, config, torch.device("cuda" if on_cuda else "cpu"), capability)
    outside = resolve_references(config.objective, resolve_model)
    model = without_storage(lambda: config.objective.build_model(shape, outside))
    return Network(config, on_cuda, vocabulary, note, model, attention)


PIECES_PER_ROW = 4
"""Documents that are taken to share a row."""
TOKENS_PER_SENTENCE = 24
_ROLES = ("bos", "pad", "eos", "unk", "mask")
_ASSUMED_VOCABULARY = {"encoder": 30_522, "decoder": 50_257, "encoder_decoder": 32_128, "elmo": 100_000}
"""Assumed size of the vocabulary by kind of network, if neither tokens nor the configuration give it: BERT's, GPT-2's
and T5's, and a usual one for ELMo."""
_WORDS = 4_000
"""Words of the lexicon that ELMo's example is spelled with."""
_FIRST_WORD = 5 + 2 * 256
"""A lexicon begins with special tokens and bytes."""


def vocabulary_of(config: PretrainConfig, vocab_size: int | None = None) -> tuple[Vocabulary, str]:
    """The vocabulary of the run's tokens, and where its size is from; empty if from the prepared tokens.

    Args:
        vocab_size: entries that the configuration of the tokens asks for, where it is known.
    """
    try:
        # A plan does not fetch tokens at a URI; their manifests say how many ids they have.
        uris = [
            committed_at(store.path, TOKENS) for store in config.data.stores if isinstance(store.path, str)
        ]
        if sizes := [found.config["vocab_size"] for uri in uris if (found := manifest_at(uri))]:
            extra = config.objective.extra_tokens(["en"])
            return _invented(config, config.model.vocab_size or max(sizes) + len(extra)), ""
        stores = [TokenStore.open(store.path, verify=False) for store in config.data.stores]
        return open_vocabulary(config, stores), ""
    except (ClozeError, OSError):
        if config.model.vocab_size is not None:
            return _invented(config, config.model.vocab_size), ""
        source = "a usual size of the vocabulary" if vocab_size is None else "the size that they will have"
        size = vocab_size or _ASSUMED_VOCABULARY[config.model.network]
        return _invented(config, size), f"the tokens are not there: {source} is taken"


def _invented(config: PretrainConfig, size: int) -> Vocabulary:
    """A vocabulary of `size` ids without texts."""
    extra = config.objective.extra_tokens(["en"])
    names = [*_ROLES, *(text for text in extra if text not in ("<mask>", "<pad>"))]
    size = max(size, len(names) + 64)
    is_special = np.zeros(size, dtype=bool)
    is_special[: len(names)] = True
    return Vocabulary(
        size=size,
        roles={name: number for number, name in enumerate(names)},
        is_special=is_special,
        starts_word=np.ones(size, dtype=bool),
        tokenizer_json="{}",
    )


def example_batch(config: PretrainConfig, vocabulary: Vocabulary, rows: int, sequence_length: int) -> Batch:
    """The objective's arguments for the network, for `rows` samples of a phase with this sequence length."""
    settings, wanted = config.objective, config.objective.reading(sequence_length)
    length = wanted.length
    random = np.random.Generator(np.random.Philox(0))
    if settings.kind == "bilm":
        # Words as frequent as in texts, where each is computed once (Zipf).
        ranks = np.exp(random.random((rows, length)) * np.log(_WORDS)).astype(np.int64)
        ids = _FIRST_WORD + np.minimum(ranks, _WORDS - 1)
    else:
        ordinary = vocabulary.ordinary
        ids = ordinary[random.integers(0, len(ordinary), (rows, length))].astype(np.int64)
    pair = wanted.relation is not None or config.format in PAIR_FORMATS
    if pair:
        starts = np.asarray([0, max(1, length - length // 16)])
    else:
        count = max(1, min(PIECES_PER_ROW, length // 8))
        starts = np.arange(count) * length // count
    for start in starts:
        ids[:, start] = vocabulary["bos"]
        ids[:, start - 1] = vocabulary["eos"]
    optional: dict[str, Any] = {}
    if pair:
        ids[:, starts[-1] :] = vocabulary["pad"]
        halves = (np.arange(length) >= length // 2).astype(np.uint8)
        optional["segment_ids"] = np.tile(halves, (rows, 1))
        optional["pair_labels"] = np.arange(rows, dtype=np.int64) % 2
    if wanted.sentence_starts:
        sentences = np.unique(np.concatenate([starts + 1, np.arange(2, length - 1, TOKENS_PER_SENTENCE)]))
        optional["sentence_starts"] = _in_all_rows(sentences, rows, length)
    if wanted.langs:
        optional["langs"] = np.zeros(rows, dtype=np.int64)
    whole_rows = config.batch.attention == "full" or len(starts) == 1
    boundaries = np.zeros(1, dtype=np.int64) if whole_rows else starts
    packed = Packed(
        input_ids=ids,
        cu_seqlens=np.append(_in_all_rows(boundaries, rows, length), np.int32(rows * length)),
        sample_ids=np.arange(rows, dtype=np.uint64),
        epochs=np.zeros(rows, dtype=np.uint64),
        **optional,
    )
    if settings.kind == "bilm":
        vocabulary = replace(vocabulary, tokenizer_json=_lexicon())
    return settings.corrupt(packed, Noise.of("plan", 0), vocabulary)


def _in_all_rows(columns: np.ndarray, rows: int, length: int) -> np.ndarray:
    return (np.arange(rows)[:, None] * length + columns[None, :]).reshape(-1).astype(np.int32)


@lru_cache(maxsize=1)
def _lexicon() -> str:
    """A `tokenizer.json` of invented words."""
    from data_prep.tokenizers.word_lexicon import assemble

    letters = "etaoinshrdlu"
    words = [
        "".join(letters[number // len(letters) ** place % len(letters)] for place in range(5))
        for number in range(_WORDS)
    ]
    return assemble(words).to_str()
