"""Which tokens may be written next: lengths, forced and suppressed tokens, repetition."""

from __future__ import annotations

import math
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
