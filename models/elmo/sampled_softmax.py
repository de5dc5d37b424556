"""Cross-entropy against a sample of the vocabulary (Jean et al. 2015, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """Rows of the softmax for the words that were drawn, and for the targets."""

    negatives: Tensor
    """[drawn] int64 distinct words."""
    negative_weight: Tensor
    """[drawn, width]."""
    negative_offset: Tensor
    """[drawn]: bias minus the logarithm of how often the word was expected among the draws."""
    target_weight: Tensor
    """[words, width] for the word at each place."""
    target_offset: Tensor
    """[words], as `negative_offset`."""


def choose_candidates(
    weight: Tensor,
    bias: Tensor,
    word_ids: Tensor,
    log_counts: Tensor,
    negatives: Tensor,
    negative_log_counts: Tensor,
) -> Candidates:
    """Look up the inputs of `sampled_cross_entropy`; one look-up, so that there is one gradient of the matrix's size.

    Args:
        weight: [vocabulary, width].
        bias: [vocabulary].
        word_ids: [words] int64 words that are predicted somewhere.
        log_counts: [words] float32: the logarithm of how often each is expected among the draws.
        negatives: [drawn] int64 distinct words.
        negative_log_counts: [drawn] float32, as `log_counts`.
    """
    rows = torch.cat([negatives, word_ids])
    chosen = weight.index_select(0, rows)
    offsets = bias.index_select(0, rows).float() - torch.cat([negative_log_counts, log_counts])
    drawn = len(negatives)
    return Candidates(negatives, chosen[:drawn], offsets[:drawn], chosen[drawn:], offsets[drawn:])


def sampled_cross_entropy(
    hidden: Tensor, candidates: Candidates, places: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each target against itself and the drawn words, in nats: the sum (float32 scalar) and, without
    a gradient, one by one ([predicted] float32).

    Logarithms of the expected counts are subtracted, so that the gradient tends to the gradient of the full softmax as
    the sample grows. Where a target was drawn, it does not count a second time.

    Args:
        hidden: [predicted, width].
        places: [predicted] int64: which of `Candidates.target_weight` each target is.
        targets: [predicted] int64 words.
    """
    wanted = candidates.target_weight.index_select(0, places)
    right = (hidden * wanted).sum(-1).float() + candidates.target_offset[places]
    wrong = (hidden @ candidates.negative_weight.t()).float() + candidates.negative_offset
    wrong = wrong.masked_fill(targets[:, None] == candidates.negatives, -torch.inf)
    each = torch.cat([right[:, None], wrong], dim=-1).logsumexp(-1) - right
    return each.sum(), each.detach()
