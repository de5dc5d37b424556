"""The networks of multiple choice: which of several texts is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from models.config import Network, TransformerConfig
from models.decoder_classifier import DecoderClassifier
from models.encoder_decoder_classifier import EncoderDecoderClassifier
from models.heads import ClassificationHead
from models.sequence_classifier import SequenceClassifier


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
"""By kind of network. The tensors of each have the names of the classifier with one label."""


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
