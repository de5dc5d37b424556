"""The bidirectional language model of ELMo's pre-training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.elmo.config import ElmoConfig
from models.elmo.encoder import DrawnLinear, ElmoEncoder
from models.losses import EACH, summed_cross_entropy


def sampled_softmax(
    weight: Tensor,
    bias: Tensor,
    word_ids: Tensor,
    log_counts: Tensor,
    negatives: Tensor,
    negative_log_counts: Tensor,
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The cross-entropy of each target against itself and the drawn words.

    Logarithms of the expected counts are subtracted, so that the gradient tends to the gradient of the full softmax as
    the sample grows. Where a target was drawn, it does not count a second time. Rows of the matrix are looked up once,
    so that there is one gradient of its size.

    Args:
        weight: [vocabulary, width].
        bias: [vocabulary].
        word_ids: [words] int64 words that are predicted somewhere.
        log_counts: [words] float32: the logarithm of how often each is expected among the draws.
        negatives: [drawn] int64 distinct words.
        negative_log_counts: [drawn] float32, as `log_counts`.

    Returns:
        A function of [predicted, width] hidden states and [predicted] int64 places of their targets in `word_ids`: the
        sum in nats (float32 scalar) and, without a gradient, the losses one by one ([predicted] float32).
    """
    drawn, rows = len(negatives), torch.cat([negatives, word_ids])
    chosen = weight.index_select(0, rows)
    offsets = bias.index_select(0, rows).float() - torch.cat([negative_log_counts, log_counts])

    def loss(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        right = (hidden * chosen[drawn:].index_select(0, places)).sum(-1).float() + offsets[drawn:][places]
        wrong = (hidden @ chosen[:drawn].t()).float() + offsets[:drawn]
        wrong = wrong.masked_fill(word_ids[places][:, None] == negatives, -torch.inf)
        each = torch.cat([right[:, None], wrong], dim=-1).logsumexp(-1) - right
        return each.sum(), each.detach()

    return loss


class ElmoLanguageModel(nn.Module):
    """Predicts each word from those before it and, apart from that, from those after it (Peters et al. 2018, section
    3.1); both directions share the token layer and the softmax.

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        vocab_size = config.require_vocab_size()
        self.encoder = ElmoEncoder(config)
        self.dropout = nn.Dropout(config.dropout)
        self.softmax = DrawnLinear(config.projection_size, vocab_size)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the highway layers only; arguments as of `torch.compile`.

        The number of LSTM steps follows the lengths of the sentences, which change with every batch.
        """
        for highway in self.encoder.tokens.highways:
            highway.compile(*args, **kwargs)

    def forward(
        self,
        characters: Tensor,
        words: Tensor,
        cu_seqlens: Tensor,
        word_ids: Tensor,
        predicted_positions: Tensor,
        log_counts: Tensor | None = None,
        negatives: Tensor | None = None,
        negative_log_counts: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Losses of both directions.

        Args:
            characters, words, cu_seqlens: as in `ElmoEncoder.forward`.
            word_ids: [words] int64: the softmax's id of the word at each place.
            predicted_positions: [predicted] int64 ascending places that are followed by a word of the same piece. The
                LSTM from the left predicts the word after each; from there, the one from the right predicts it.
            log_counts: [words] float32 logarithms of how often each of `word_ids` is expected among the draws.
            negatives: [drawn] int64 distinct words. In training, with these, the softmax is a sampled one; otherwise,
                and always in evaluation, it is over all words.
            negative_log_counts: [drawn] float32, as `log_counts`.

        Returns:
            `forward` and `backward`: sums of cross-entropies in nats (float32 scalars), and with the full softmax the
            numbers of right predictions (int64 scalars); beside these, the losses of `forward` one by one (see
            `models.losses.EACH`).
        """
        from_left, from_right = self.encoder.directions(characters, words, cu_seqlens)
        next_positions = predicted_positions + 1
        terms = {
            "forward": (from_left[-1].index_select(0, predicted_positions), next_positions),
            "backward": (from_right[-1].index_select(0, next_positions), predicted_positions),
        }
        losses: dict[str, Tensor] = {}
        correct: dict[str, Tensor] = {}
        each: dict[str, Tensor] = {}
        weight, bias = self.softmax.weight, self.softmax.bias
        if (
            self.training
            and negatives is not None
            and negative_log_counts is not None
            and log_counts is not None
        ):
            loss = sampled_softmax(weight, bias, word_ids, log_counts, negatives, negative_log_counts)
            for term, (hidden, places) in terms.items():
                losses[term], each[term] = loss(self.dropout(hidden), places)
        else:
            for term, (hidden, places) in terms.items():
                losses[term], correct[term], each[term] = summed_cross_entropy(
                    self.dropout(hidden), weight, bias, word_ids[places]
                )
        return losses, correct | {EACH: each["forward"]}
