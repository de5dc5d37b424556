"""The network of classification with a decoder."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import TransformerConfig
from models.decoder import Decoder
from models.dropout import dropout
from models.layout import last_positions


class DecoderClassifier(nn.Module):
    """A decoder whose last token has read all of the sequence and speaks for it (Radford et al. 2018, section 3.2).

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
