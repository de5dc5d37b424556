"""The network of extractive question answering: where the answer begins and ends."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.heads import TokenTransform
from models.stacks import add_stacks, read_text


class SpanClassifier(nn.Module):
    """Two scores per token: the answer begins here, and it ends here (Devlin et al. 2019, section 4.2).

    An encoder-decoder reads the text on both sides (Lewis et al. 2020, section 3.1); a decoder judges a token without
    having read what follows.

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        add_stacks(self, config)
        transform = config.network == "encoder" and config.classification_head == "gelu_norm"
        self.transform = TokenTransform(config) if transform else nn.Identity()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """Score every token as the first and as the last of the answer.

        Args:
            input_ids: [batch, length] int64, question and passage with their special tokens, padded on the right.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded.
            segment_ids: [batch, length] int64: 0 in the question, 1 in the passage; None takes segment 0.
            decoder_input_ids: [batch, length] int64, for an encoder-decoder; see `read_text`.

        Returns:
            [batch, length, 2] logits of begin and end; those at padding have no meaning.
        """
        hidden = read_text(self, input_ids, attention_mask, segment_ids, decoder_input_ids)
        return self.output(self.transform(hidden))


def span_loss(logits: Tensor, answer: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean of the cross-entropies of begin and end, summed over rows; float32 scalar in nats.

    Args:
        logits: [batch, length, 2].
        answer: [batch, 2] int64 positions of the first and the last token.
        attention_mask: [batch, length] bool; padding gets no probability, so that a row's loss does not depend on how
            far it was padded.
    """
    scores = logits.float().masked_fill(~attention_mask.unsqueeze(-1), float("-inf")).unbind(-1)
    first, last = map(partial(F.cross_entropy, reduction="sum"), scores, answer.unbind(-1))
    return (first + last) / 2


def best_spans(logits: Tensor, begins: Tensor, ends: Tensor, *, max_length: int, n_best: int) -> Tensor:
    """The spans of each row with the highest sum of begin and end scores.

    All spans are compared; the released code of BERT first takes the 20 best begins and ends.

    Args:
        logits: [batch, length, 2].
        begins: [batch, length] bool: where a span may begin.
        ends: [batch, length] bool: where a span may end.
        max_length: tokens of the longest span.
        n_best: spans to give.

    Returns:
        [batch, n_best, 3] float32: first token, last token and score of each span, the best first; the score is -inf
        where a row has no more spans.
    """
    begin, end = logits.float().unbind(-1)
    begin = begin.masked_fill(~begins, float("-inf"))
    end = end.masked_fill(~ends, float("-inf"))
    longer = F.pad(end, (0, max_length - 1), value=float("-inf"))
    # scores[b, i, k] is the score of the span from token i to token i + k.
    scores = begin.unsqueeze(-1) + longer.unfold(1, max_length, 1)
    missing = max(0, n_best - scores[0].numel())
    best = F.pad(scores.flatten(1), (0, missing), value=float("-inf")).topk(n_best)
    first = best.indices // max_length
    last = first + best.indices % max_length
    return torch.stack((first.float(), last.float(), best.values), -1)
