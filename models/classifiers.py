"""Networks of fine-tuning with labels: for whole sequences, tokens, choices, and answers inside a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import Network, TransformerConfig
from models.decoder import Decoder
from models.encoder import Encoder
from models.functional import dropout
from models.heads import ClassificationHead, TokenTransform
from models.layout import first_positions, last_positions
from models.stacks import add_stacks, read_text


class SequenceClassifier(nn.Module):
    """An encoder whose first position, `<s>`, represents the sequence (Liu et al. 2019, section 5.1).

    Raises:
        ValueError: `config.vocab_size` is not set, or `num_labels` is below 1.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = ClassificationHead(config, num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Score sequences.

        Args:
            input_ids: [batch, length] int64, `<s>` first, padded on the right.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded.
            segment_ids: [batch, length] int64; None takes segment 0, where there are segments.

        Returns:
            [batch, num_labels] logits; with one label, the predicted value.
        """
        first = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            read=first_positions(input_ids),
        )
        return self.head(first)


class DecoderClassifier(nn.Module):
    """A decoder whose last token has read all of the sequence and represents it (Radford et al. 2018, section 3.2).

    Raises:
        ValueError: `config.vocab_size` is not set, `num_labels` is below 1, or the configuration is of another kind of
            network.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if config.network != "decoder":
            raise ValueError(f"this network needs network: decoder, not {config.network}")
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1 (1 is a regression), not {num_labels}")
        self.config = config
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.hidden_size, num_labels, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Score sequences.

        Args:
            input_ids: [batch, length] int64, padded on either side.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded.

        Returns:
            [batch, num_labels] logits; with one label, the predicted value.
        """
        read = last_positions(input_ids, attention_mask)
        last = self.decoder(input_ids, attention_mask=attention_mask, read=read)
        return self.output(dropout(last, self.config.dropout, self.training))


class EncoderDecoderClassifier(nn.Module):
    """Encoder and decoder read the same text, and the decoder's last token represents it (Lewis et al. 2020, section
    3.1).

    Raises:
        ValueError: `config.vocab_size` is not set, `num_labels` is below 1, or the configuration is of another kind of
            network.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if config.network != "encoder_decoder":
            raise ValueError(f"this network needs network: encoder_decoder, not {config.network}")
        self.config = config
        add_stacks(self, config)
        self.head = ClassificationHead(config, num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """Score sequences.

        Args:
            input_ids: [batch, length] int64, `</s>` last, padded on the right.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded.
            decoder_input_ids: [batch, length] int64: the same text, one place later; None makes it as BART has it, see
                `shifted_right`.

        Returns:
            [batch, num_labels] logits; with one label, the predicted value.
        """
        read = last_positions(input_ids, attention_mask)
        last = read_text(self, input_ids, attention_mask, decoder_input_ids=decoder_input_ids, read=read)
        return self.head(last)


class TokenClassifier(nn.Module):
    """An encoder or a decoder with dropout and a linear layer on every token (Devlin et al. 2019, section 5.3).

    A decoder tags a token without having read what follows.

    Raises:
        ValueError: `config.vocab_size` is not set, `num_labels` is below 1, or the network is an encoder-decoder.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if config.network == "encoder_decoder":
            raise ValueError("tagging needs network: encoder or decoder, not encoder_decoder")
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, not {num_labels}")
        self.config = config
        add_stacks(self, config)
        transform = config.network == "encoder" and config.classification_head == "gelu_norm"
        self.transform = TokenTransform(config) if transform else nn.Identity()
        self.scores = nn.Linear(config.hidden_size, num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Score the labels of every token.

        Args:
            input_ids: [batch, length] int64.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded.
            segment_ids: [batch, length] int64, for an encoder; None takes segment 0, where there are segments.

        Returns:
            [batch, length, num_labels] logits; those at padding have no meaning.
        """
        hidden = self.transform(read_text(self, input_ids, attention_mask, segment_ids))
        return self.scores(dropout(hidden, self.config.dropout, self.training))


class ChoiceClassifier(SequenceClassifier):
    """An encoder that reads the question with each choice; its first token scores it (Devlin et al. 2019, section 4.4).

    Raises:
        ValueError: as in `SequenceClassifier`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, 1)
        # In multiple choice every family scores what its pooler gives.
        self.head = ClassificationHead(config, 1, pooled=True)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Score choices.

        Args:
            input_ids: [batch, choices, length] int64, each row the question with one choice.
            attention_mask: [batch, choices, length] bool or int, true (or 1) at tokens; None when nothing is padded.
            segment_ids: [batch, choices, length] int64; None takes segment 0, where there are segments.

        Returns:
            [batch, choices] logits.

        Raises:
            ValueError: input_ids do not have three dimensions.
        """
        given = {"attention_mask": attention_mask, "segment_ids": segment_ids}
        return score_choices(super().forward, input_ids, given)


class DecoderChoiceClassifier(DecoderClassifier):
    """A decoder that reads the question with each choice; its last token scores it (Radford et al. 2018, section 3.3).

    Raises:
        ValueError: as in `DecoderClassifier`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Score choices; arguments and result as of `ChoiceClassifier.forward`."""
        return score_choices(super().forward, input_ids, {"attention_mask": attention_mask})


class EncoderDecoderChoiceClassifier(EncoderDecoderClassifier):
    """An encoder-decoder that reads the question with each choice; the decoder's last token scores it.

    Raises:
        ValueError: as in `EncoderDecoderClassifier`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, 1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """Score choices; arguments and result as of `ChoiceClassifier.forward`. `decoder_input_ids`
        [batch, choices, length] are as in `read_text`."""
        given = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        return score_choices(super().forward, input_ids, given)


CHOICE_CLASSIFIERS: Mapping[Network, Callable[[TransformerConfig], nn.Module]] = {
    "encoder": ChoiceClassifier,
    "decoder": DecoderChoiceClassifier,
    "encoder_decoder": EncoderDecoderChoiceClassifier,
}
"""Classifiers by kind of network. The tensors of each have the names of the classifier with one label."""


def score_choices(
    score: Callable[..., Tensor], input_ids: Tensor, given: Mapping[str, Tensor | None]
) -> Tensor:
    """[batch, choices] scores of [batch, choices, length] texts.

    Args:
        score: gives [rows, 1] for texts [rows, length].
        given: its other arguments by name, [batch, choices, length] each.

    Raises:
        ValueError: input_ids do not have three dimensions.
    """
    if input_ids.dim() != 3:
        raise ValueError(f"input_ids must have shape [batch, choices, length], not {list(input_ids.shape)}")
    rows = {name: tensor.flatten(0, 1) for name, tensor in given.items() if tensor is not None}
    return score(input_ids.flatten(0, 1), **rows).view(input_ids.shape[:2])


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
