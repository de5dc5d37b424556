"""The result of a generation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Generated:
    """Continuations: `num_return_sequences` rows per prompt, side by side."""

    sequences: Tensor
    """[rows, length] int64: prompts as they were given, the written tokens, the end token, and padding behind it."""
    scores: Tensor
    """[rows] float32: log-probabilities of the written tokens in nats, divided by their number ** `length_penalty`."""
    lengths: Tensor
    """[rows] int64 tokens of each sequence, with prompt and end and without the padding behind."""
    prompt_length: int
    """Tokens of every prompt, padding included."""

    def continuations(self) -> list[list[int]]:
        """The written tokens of each row, with the end token, without prompt and padding."""
        return [
            row[self.prompt_length : length]
            for row, length in zip(self.sequences.tolist(), self.lengths.tolist(), strict=True)
        ]
