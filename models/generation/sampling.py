"""Scores of the next token, constrained, and a token drawn from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.generation.config import GenerationConfig


@dataclass(frozen=True)
class Constraints:
    """The settings of a generation that change the scores of the next token, with lengths counted in tokens of whole
    sequences."""

    config: GenerationConfig
    prompt_length: int
    """Tokens of every prompt, padding included."""
    max_length: int
    """Tokens of the longest sequence, prompt included."""

    @property
    def min_length(self) -> int:
        """Tokens before the end may come."""
        return max(self.config.min_length, self.prompt_length + self.config.min_new_tokens)

    def forced(self, length: int) -> int | None:
        """The only token that may follow `length` tokens; None if there is a choice."""
        if length == self.max_length - 1 and self.config.forced_eos_token_id is not None:
            return self.config.forced_eos_token_id
        return self.config.forced_bos_token_id if length == 1 else None

    def apply(self, scores: Tensor, sequences: Tensor, padding: Tensor | None) -> Tensor:
        """Change the scores of the next token.

        Args:
            scores: [rows, vocab_size] logits or log-probabilities; overwritten.
            sequences: [rows, length] int64 that were written so far, prompts included.
            padding: [rows] int64 tokens of padding before the prompts, where there is any.

        Returns:
            [rows, vocab_size]: -inf at tokens that may not follow. A forced token has 0, the log-probability of
            a certain event.
        """
        config, length = self.config, sequences.shape[1]
        forced = self.forced(length)
        if forced is not None:
            scores.fill_(-math.inf)[:, forced] = 0.0
            return scores
        if config.repetition_penalty != 1.0:
            scores = penalise_repetition(scores, sequences, padding, config.repetition_penalty)
        if config.no_repeat_ngram_size:
            scores = ban_repeated_ngrams(scores, sequences, config.no_repeat_ngram_size)
        if config.eos_token_id is not None and length < self.min_length:
            scores[:, config.eos_token_id] = -math.inf
        if config.suppress_tokens:
            scores[:, list(config.suppress_tokens)] = -math.inf
        return scores


def penalise_repetition(scores: Tensor, sequences: Tensor, padding: Tensor | None, penalty: float) -> Tensor:
    """Make tokens that a sequence has less probable (Keskar et al. 2019, section 4.1); shapes as in `Constraints`.

    Negative scores are multiplied, where the paper divides and would reward.
    """
    seen = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    if padding is not None:
        place = torch.arange(sequences.shape[1], device=scores.device)
        # Padding is marked in one extra column, which is cut off below.
        sequences = sequences.where(place >= padding[:, None], scores.shape[1])
    seen = seen.scatter_(1, sequences, True)[:, :-1]
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def ban_repeated_ngrams(scores: Tensor, sequences: Tensor, size: int) -> Tensor:
    """-inf at tokens that would repeat an n-gram of `size` tokens of their sequence (Paulus et al. 2018, section 2.5);
    shapes as in `Constraints`, `scores` is overwritten."""
    length = sequences.shape[1]
    if length < size:
        return scores
    ngrams = sequences.unfold(1, size, 1)
    begun = (ngrams[..., :-1] == sequences[:, None, length - size + 1 :]).all(-1)
    row, place = begun.nonzero(as_tuple=True)
    scores[row, ngrams[row, place, -1]] = -math.inf
    return scores


class Sampler:
    """Draws tokens; every draw is a function of (seed, row id, number of the sample, number of the token), so a
    row's text does not depend on the other rows of its batch."""

    def __init__(self, config: GenerationConfig, row_ids: Sequence[int]) -> None:
        """
        Args:
            row_ids: different numbers, one per prompt.
        """
        self._config = config
        self._row_ids = row_ids

    def __call__(self, logits: Tensor, rows: Tensor, number: int) -> Tensor:
        """[rows, vocab_size] logits to [rows] int64 tokens; `rows` [rows] numbers the samples of all prompts."""
        config, copies = self._config, self._config.num_return_sequences
        draws = [
            uniform(config.seed, self._row_ids[row // copies], row % copies, number) for row in rows.tolist()
        ]
        logits = logits / config.temperature
        if config.top_k is not None:
            logits = keep_top_k(logits, config.top_k)
        if config.top_p is not None:
            logits = keep_top_p(logits, config.top_p)
        return draw(logits, torch.tensor(draws, dtype=torch.float64, device=logits.device))


def keep_top_k(logits: Tensor, count: int) -> Tensor:
    """-inf at all but the `count` highest of [rows, vocab_size] logits, and those equal to the lowest of them (Fan et
    al. 2018, section 5.1)."""
    least = logits.topk(min(count, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < least, -math.inf)


def keep_top_p(logits: Tensor, share: float) -> Tensor:
    """-inf at all but the fewest of [rows, vocab_size] logits whose probabilities sum to at least `share` (Holtzman
    et al. 2020, section 3.1)."""
    ordered, tokens = logits.sort(descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    before[:, 0] = 0.0
    return logits.masked_fill((before >= share).gather(1, tokens.argsort(-1)), -math.inf)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Turn float64 [rows] numbers in [0, 1) into tokens by the cumulated probabilities of [rows, vocab_size] logits."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # The sum is 1 but for rounding, and a number at or above it would find no token.
    return torch.searchsorted(cumulated, (uniforms * cumulated[:, -1])[:, None], right=True).squeeze(1)


def uniform(*key: int) -> float:
    """A number in [0, 1) with 48 random bits, a function of `key`."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little") / 2**48
