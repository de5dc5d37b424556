"""The networks of language modelling: masked (BERT), from left to right (GPT), and from text to text (BART, T5).

Each gives `(losses, correct)`: by term the cross-entropy in nats, summed (float32 scalar), and the number of right
predictions (int64 scalar); beside the latter, the losses of the first term one by one (see `models.losses.EACH`).
All raise ValueError where `config.vocab_size` is not set. Where nothing else is said, `forward` takes

    input_ids              [batch, length] int64
    predicted_positions    [num_predicted] int64 indices into the flattened batch; may be empty
    targets                [num_predicted] int64 ids of the tokens that belong there
    cu_seqlens             [num_pieces + 1] int32 boundaries of packed pieces; None attends to whole rows
    segment_ids            [batch, length] int64
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import DecoderCache
from models.config import TransformerConfig
from models.embeddings import SharedEmbeddings
from models.heads import MaskedLanguageModelHead, PairHead, VocabularyProjection
from models.layout import first_positions
from models.losses import EACH
from models.stacks import Decoder, Encoder

Losses = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Losses and right predictions, by term."""


class MaskedLanguageModel(nn.Module):
    """An encoder that predicts tokens at chosen positions, and whether two segments belong together (Devlin et al.
    2019, section 3.1, tasks 1 and 2)."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        pair: str | None = None,
        embeddings: SharedEmbeddings | None = None,
    ) -> None:
        """
        Args:
            pair: name of the loss term about pairs, `nsp` or `sop`; None for a network without that head.
            embeddings: of another network, as ELECTRA's generator has them; None makes its own.
        """
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, embeddings)
        self.head = MaskedLanguageModelHead(config)
        self.pair = pair
        self.pair_head = PairHead(config) if pair else None

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
        pair_labels: Tensor | None = None,
    ) -> Losses:
        """`mlm`, and the pair's term; no other than the predicted positions reaches the head.

        Args:
            pair_labels: [batch] int64: 0 if the row's second segment follows the first, 1 if not.
        """
        read = predicted_positions
        if self.pair_head is not None:
            read = torch.cat((read, first_positions(input_ids)))
        hidden = self.encoder(input_ids, cu_seqlens=cu_seqlens, segment_ids=segment_ids, read=read)
        predicted, first = hidden.tensor_split([len(predicted_positions)])
        loss, correct, each = self.head.loss(predicted, self.encoder.embeddings.token_weight, targets)
        losses, right = {"mlm": loss}, {"mlm": correct, EACH: each}
        if self.pair_head is not None and self.pair is not None and pair_labels is not None:
            losses[self.pair], right[self.pair] = self.pair_head.loss(first, pair_labels)
        return losses, right

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, length, vocab_size] scores for every token at every position; arguments as in `Encoder`."""
        return self.project(self.encoder(input_ids, cu_seqlens, attention_mask, segment_ids=segment_ids))

    def project(self, hidden: Tensor) -> Tensor:
        """[..., hidden] of the encoder to [..., vocab_size] logits."""
        return self.head(hidden, self.encoder.embeddings.token_weight)


class CausalLanguageModel(nn.Module):
    """A decoder that predicts the next token (Radford et al. 2018, section 3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config)
        if config.embedding_width != config.hidden_size:
            raise ValueError("a decoder predicts with its embeddings: leave embedding_size out")
        self.head = VocabularyProjection(config, bias=False)
        self.logit_scale = config.hidden_size**-0.5 if config.scale_logits else 1.0

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> Losses:
        """`clm`, at the predicted positions; targets are the tokens that follow there.

        Args:
            prefix_lengths: [num_pieces] int32 tokens of each piece that are read both ways.
        """
        predicted = self.decoder(
            input_ids, cu_seqlens=cu_seqlens, prefix_lengths=prefix_lengths, read=predicted_positions
        )
        scaled = predicted * self.logit_scale
        loss, correct, each = self.head.loss(scaled, self.decoder.embeddings.token_weight, targets)
        return {"clm": loss}, {"clm": correct, EACH: each}

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """[batch, length, vocab_size] scores for what follows each token; arguments as in `Decoder`."""
        return self.project(self.decoder(input_ids, cu_seqlens, attention_mask, prefix_lengths, cache))

    def project(self, hidden: Tensor) -> Tensor:
        """[..., hidden] of the decoder to [..., vocab_size] logits."""
        return self.head(hidden * self.logit_scale, self.decoder.embeddings.token_weight)


class SequenceToSequence(nn.Module):
    """An encoder reads, a decoder writes with its help; both share the token embedding (Lewis et al. 2020, section
    2.1; Raffel et al. 2020, section 2.1).

    Raises:
        ValueError: the configuration is of another kind of network.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.network != "encoder_decoder":
            raise ValueError(f"this network needs network: encoder_decoder, not {config.network}")
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.head = VocabularyProjection(config, bias=False)
        self.logit_scale = config.hidden_size**-0.5 if config.scale_logits else 1.0

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
        decoder_cu_seqlens: Tensor | None = None,
    ) -> Losses:
        """`denoise`, at the predicted positions of the decoder; targets are the tokens that follow there.

        Args:
            input_ids, cu_seqlens: of the encoder.
            decoder_input_ids: [batch, decoder length] int64.
            decoder_cu_seqlens: [num_pieces + 1] int32 boundaries of the decoder's pieces; piece i reads the encoder's
                piece i.
        """
        memory = self.encoder.memory(input_ids, cu_seqlens)
        predicted = self.decoder(
            decoder_input_ids, cu_seqlens=decoder_cu_seqlens, memory=memory, read=predicted_positions
        )
        scaled = predicted * self.logit_scale
        loss, correct, each = self.head.loss(scaled, self.encoder.embeddings.token_weight, targets)
        return {"denoise": loss}, {"denoise": correct, EACH: each}

    def project(self, hidden: Tensor) -> Tensor:
        """[..., hidden] of the decoder to [..., vocab_size] logits."""
        return self.head(hidden * self.logit_scale, self.encoder.embeddings.token_weight)

    def logits(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        decoder_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """[batch, decoder length, vocab_size] scores; arguments as in `Encoder` and `Decoder`."""
        memory = self.encoder.memory(input_ids, cu_seqlens, attention_mask)
        return self.project(
            self.decoder(decoder_input_ids, decoder_cu_seqlens, decoder_attention_mask, memory=memory)
        )


class ConditionalGenerator(nn.Module):
    """A network that writes, as it is fine-tuned on padded pairs of texts: an encoder-decoder (Lewis et al. 2020,
    section 3.3), or a decoder that continues prompts (Radford et al. 2019, section 3.6)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        has_encoder = config.network == "encoder_decoder"
        self.network = SequenceToSequence(config) if has_encoder else CausalLanguageModel(config)

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """Scores for the next token; padding of the decoder, on the right, is after everything that is predicted.

        Args:
            input_ids: [batch, length] int64, padded on the right; of a decoder alone, prompts with their targets.
            predicted_positions: [predicted] int64 positions in the flattened batch of the decoder.
            attention_mask: [batch, length] bool, true at tokens, for an encoder-decoder.
            decoder_input_ids: [batch, decoder length] int64, padded on the right, for an encoder-decoder.

        Returns:
            [predicted, vocab_size] logits.
        """
        if isinstance(self.network, CausalLanguageModel):
            hidden = self.network.decoder(input_ids, read=predicted_positions)
        else:
            assert decoder_input_ids is not None
            memory = self.network.encoder.memory(input_ids, attention_mask=attention_mask)
            hidden = self.network.decoder(decoder_input_ids, memory=memory, read=predicted_positions)
        return self.network.project(hidden)


def smoothed_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy with label smoothing: a share of each target goes to all tokens alike (Szegedy et al. 2016, section
    7). Summed, float32 scalar in nats. `logits` [predicted, vocab_size], `targets` [predicted] int64."""
    return F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=label_smoothing)
