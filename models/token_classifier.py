"""The network of tagging: a label for every token."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import TransformerConfig
from models.dropout import dropout
from models.heads import TokenTransform
from models.stacks import add_stacks, read_text


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
