"""Sampling: tokens drawn from the distribution of the network, sharpened or cut."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from models.generation.config import GenerationConfig


class Sampler:
    """Draws tokens; every draw is a function of (seed, row id, number of the sample, number of the token), so a
    row's text does not depend on the other rows of its batch."""

    def __init__(self, config: GenerationConfig, row_ids: Sequence[int]) -> None:
        """
        Args:
            row_ids: any numbers that tell prompts apart, one per prompt.
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
