"""Scores of the next token, constrained; a token drawn from them; and the loop that greedy search and sampling share,
which writes every row by itself."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.generation.config import GenerationConfig
from models.generation.reader import Reader, check_numbers


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


Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits [rows, vocab_size], indices of the rows [rows], index of the token) to the tokens to write, [rows]."""


def sampler(config: GenerationConfig) -> Choose:
    """Draw tokens; every draw is a function of (seed, row, index of the sample, index of the token), so a row's text
    does not depend on the texts of the other rows of its batch."""

    def choose(logits: Tensor, rows: Tensor, number: int) -> Tensor:
        copies = config.num_return_sequences
        draws = [uniform(config.seed, *divmod(row, copies), number) for row in rows.tolist()]
        logits = logits / config.temperature
        if config.top_k is not None:
            logits = keep_top_k(logits, config.top_k)
        if config.top_p is not None:
            logits = keep_top_p(logits, config.top_p)
        return draw(logits, torch.tensor(draws, dtype=torch.float64, device=logits.device))

    return choose


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


@dataclass(frozen=True)
class Generated:
    """Continuations: `num_return_sequences` rows per prompt, side by side."""

    sequences: Tensor
    """[rows, length] int64: prompts as they were given, the written tokens, the end token, and padding after it."""
    scores: Tensor
    """[rows] float32: log-probabilities of the written tokens in nats, divided by their number ** `length_penalty`."""
    lengths: Tensor
    """[rows] int64 tokens of each sequence, with prompt and end and without the padding after."""
    prompt_length: int
    """Tokens of every prompt, padding included."""

    def continuations(self) -> list[list[int]]:
        """The written tokens of each row, with the end token, without prompt and padding."""
        return [
            row[self.prompt_length : length]
            for row, length in zip(self.sequences.tolist(), self.lengths.tolist(), strict=True)
        ]


def write_rows(
    reader: Reader, prompts: Tensor, padding: Tensor | None, constraints: Constraints, choose: Choose
) -> Generated:
    """Continue prompts until they end.

    Args:
        prompts: [texts, prompt length] int64.
        padding: [texts] int64 tokens of padding before the prompts, where there is any.
        choose: chooses a token from logits that the constraints have changed.

    Returns:
        `num_return_sequences` rows per text; the score of a row is the log-probability that the network gives to it,
        divided by its written tokens ** `length_penalty`.
    """
    config, copies = constraints.config, constraints.config.num_return_sequences
    prompt_length, device = prompts.shape[1], prompts.device
    logits = reader.read(prompts).repeat_interleave(copies, 0)
    reader.repeat(copies)
    count = len(logits)
    sequences = prompts.new_full((count, constraints.max_length), config.fill_token_id)
    sequences[:, :prompt_length] = prompts.repeat_interleave(copies, 0)
    lengths = prompts.new_full((count,), prompt_length)
    scores = torch.zeros(count, device=device)
    padding = None if padding is None else padding.repeat_interleave(copies)
    rows = torch.arange(count, device=device)
    is_open = torch.ones(count, dtype=torch.bool, device=device)
    for length in range(prompt_length, constraints.max_length):
        if (forced := constraints.forced(length)) is not None:
            tokens, gains = torch.full_like(rows, forced), logits.new_zeros(len(rows))
        else:
            total = logits.logsumexp(-1)
            check_numbers(total)
            own_padding = None if padding is None else padding[rows]
            # The constraints overwrite their input, and the score needs the network's own logits.
            allowed = constraints.apply(logits.clone(), sequences[rows, :length], own_padding)
            tokens = choose(allowed, rows, length - prompt_length)
            gains = logits.gather(1, tokens[:, None]).squeeze(1) - total
        sequences[rows, length] = tokens.where(is_open, config.fill_token_id)
        scores[rows] += gains.where(is_open, 0.0)
        lengths[rows] += is_open
        if config.eos_token_id is not None:
            is_open = is_open & (tokens != config.eos_token_id)
            kept = is_open.view(-1, copies).any(1)
            if not kept.all():
                reader.keep(kept.nonzero().flatten())
                of_kept = kept.repeat_interleave(copies)
                rows, is_open, tokens = rows[of_kept], is_open[of_kept], tokens[of_kept]
        if not len(rows) or length + 1 == constraints.max_length:
            break
        logits = reader.read(tokens[:, None])
    scores = scores / (lengths - prompt_length) ** config.length_penalty
    return Generated(sequences[:, : int(lengths.max())], scores, lengths, prompt_length)
