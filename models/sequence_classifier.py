"""The network of classification and regression over whole sequences."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import TransformerConfig
from models.encoder import Encoder
from models.heads import ClassificationHead
from models.layout import first_positions


class SequenceClassifier(nn.Module):
    """An encoder whose first position, `<s>`, speaks for the sequence (Liu et al. 2019, section 5.1).

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
