"""Networks of fine-tuning with labels: for whole sequences, tokens, choices, and answers inside a text.

All are built on the stacks of any kind of network, and raise ValueError where `config.vocab_size` is not set. The
arguments of `forward` are those of `stacks.read_text`; rows of an encoder-decoder are padded on the right.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout
from models.heads import ClassificationHead, TokenTransform
from models.layout import first_positions, last_positions
from models.stacks import add_stacks, read_text


class SequenceClassifier(nn.Module):
    """Scores of a whole text, by the token that represents it: the first one of an encoder, `<s>` (Liu et al. 2019,
    section 5.1); the last one of a decoder, which has read all of the text (Radford et al. 2018, section 3.2). In an
    encoder-decoder, both sides read the same text, and the decoder's last token represents it (Lewis et al. 2020,
    section 3.1).

    Raises:
        ValueError: `num_labels` is below 1.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1 (1 is a regression), not {num_labels}")
        self.config = config
        add_stacks(self, config)
        self.head = self.output = None
        if config.network == "decoder":
            self.output = nn.Linear(config.hidden_size, num_labels, bias=False)
        else:
            self.head = ClassificationHead(config, num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, num_labels] logits; with one label, the predicted value."""
        is_encoder = self.config.network == "encoder"
        read = first_positions(input_ids) if is_encoder else last_positions(input_ids, attention_mask)
        found = read_text(self, input_ids, attention_mask, segment_ids, decoder_input_ids, read)
        if self.head is not None:
            return self.head(found)
        assert self.output is not None
        return self.output(dropout(found, self.config.dropout, self.training))


class ChoiceClassifier(SequenceClassifier):
    """A score of each choice, from a text of the question with that choice (Devlin et al. 2019, section 4.4; Radford et
    al. 2018, section 3.3). The tensors have the names of a `SequenceClassifier` with one label."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, 1)
        if config.network == "encoder":
            # In multiple choice every family scores what its pooler gives.
            self.head = ClassificationHead(config, 1, pooled=True)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, choices] logits; all arguments are [batch, choices, length].

        Raises:
            ValueError: input_ids do not have three dimensions.
        """
        if input_ids.dim() != 3:
            raise ValueError(
                f"input_ids must have shape [batch, choices, length], not {list(input_ids.shape)}"
            )
        given = input_ids, attention_mask, segment_ids, decoder_input_ids
        rows = (None if tensor is None else tensor.flatten(0, 1) for tensor in given)
        return super().forward(*rows).view(input_ids.shape[:2])  # pyright: ignore[reportArgumentType]


class TokenClassifier(nn.Module):
    """An encoder or a decoder with dropout and a linear layer on every token (Devlin et al. 2019, section 5.3).

    A decoder tags a token without having read what follows.

    Raises:
        ValueError: `num_labels` is below 1, or the network is an encoder-decoder.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if config.network == "encoder_decoder":
            raise ValueError("tagging needs network: encoder or decoder, not encoder_decoder")
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, not {num_labels}")
        self.config = config
        add_stacks(self, config)
        self.transform = _token_transform(config)
        self.scores = nn.Linear(config.hidden_size, num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """[batch, length, num_labels] logits of the labels of every token; those at padding have no meaning."""
        hidden = self.transform(read_text(self, input_ids, attention_mask, segment_ids))
        return self.scores(dropout(hidden, self.config.dropout, self.training))


class SpanClassifier(nn.Module):
    """Two scores per token: the answer begins here, and it ends here (Devlin et al. 2019, section 4.2).

    An encoder-decoder reads the text on both sides (Lewis et al. 2020, section 3.1); a decoder judges a token without
    having read what follows.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        add_stacks(self, config)
        self.transform = _token_transform(config)
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, length, 2] logits of every token as the first and as the last of the answer, which lies in the
        passage after the question; those at padding have no meaning."""
        hidden = read_text(self, input_ids, attention_mask, segment_ids, decoder_input_ids)
        return self.output(self.transform(hidden))


def _token_transform(config: TransformerConfig) -> nn.Module:
    """The layers between an encoder and the scores of its tokens, where its family has any."""
    has_any = config.network == "encoder" and config.classification_head == "gelu_norm"
    return TokenTransform(config) if has_any else nn.Identity()


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
