"""The loop over tokens that greedy search and sampling share: every row by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.generation.reader import Reader, check_numbers
from models.generation.sampling import Constraints


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


Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits [rows, vocab_size], numbers of the rows [rows], number of the token) to the tokens to write, [rows]."""


def write_rows(
    reader: Reader,
    prompts: Tensor,
    padding: Tensor | None,
    constraints: Constraints,
    choose: Choose,
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
        own_padding = None if padding is None else padding[rows]
        tokens, gains = _next(logits, sequences[rows, :length], own_padding, constraints, choose, rows)
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


def _next(
    logits: Tensor,
    sequences: Tensor,
    padding: Tensor | None,
    constraints: Constraints,
    choose: Choose,
    rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """The tokens that follow, [rows], and their log-probabilities, [rows]; 0 for a forced token."""
    length = sequences.shape[1]
    forced = constraints.forced(length)
    if forced is not None:
        return torch.full_like(rows, forced), logits.new_zeros(len(rows))
    total = logits.logsumexp(-1)
    check_numbers(total)
    # The constraints overwrite their input, and the score needs the network's own logits.
    allowed = constraints.apply(logits.clone(), sequences, padding)
    tokens = choose(allowed, rows, length - constraints.prompt_length)
    return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - total
