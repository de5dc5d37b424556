"""The network of classification with an encoder-decoder."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import TransformerConfig
from models.heads import ClassificationHead
from models.layout import last_positions
from models.stacks import add_stacks, read_text


class EncoderDecoderClassifier(nn.Module):
    """Encoder and decoder read the same text, and the decoder's last token speaks for it (Lewis et al. 2020, section
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
