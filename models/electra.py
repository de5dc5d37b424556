"""ELECTRA: a small generator replaces tokens, a discriminator finds the replaced ones (Clark et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.embeddings import Embeddings, SharedEmbeddings
from models.language_models import MaskedLanguageModel
from models.losses import CHUNK_ELEMENTS, EACH
from models.stacks import Encoder
from models.transformer import ACTIVATIONS


class ReplacedTokenHead(nn.Module):
    """A score for each token: above 0 where it seems to be replaced (Clark et al. 2020, section 2; the dense layer of
    the released code)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [...] scores: the log of the odds that a token is replaced."""
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)


class Discriminator(nn.Module):
    """An encoder with a score for each token; ELECTRA keeps this network after pre-training."""

    def __init__(self, config: TransformerConfig, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, embeddings)
        self.head = ReplacedTokenHead(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, length] scores; arguments as in `Encoder`."""
        hidden = self.encoder(
            input_ids, cu_seqlens=cu_seqlens, attention_mask=attention_mask, segment_ids=segment_ids
        )
        return self.head(hidden)


@torch.no_grad()
def draw_tokens(
    generator: MaskedLanguageModel, predicted: Tensor, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """[num_predicted] int64 tokens drawn from softmax(logits): argmax(logits + g), g from Gumbel(0, 1).

    Draws from torch's global generator of the device. `chunk_elements` logits exist at a time.

    Args:
        predicted: [num_predicted, hidden] of the generator's encoder.
    """
    weight = generator.encoder.embeddings.token_weight
    parts = predicted.detach().split(max(1, chunk_elements // len(weight)))
    return torch.cat([gumbel_argmax(generator.head(part, weight).float()) for part in parts])


def gumbel_argmax(logits: Tensor) -> Tensor:
    """[rows] int64: a draw from softmax(logits) for each row of [rows, vocab_size] logits."""
    tiny = torch.finfo(logits.dtype).tiny
    gumbel = torch.empty_like(logits).exponential_().clamp_min_(tiny).log_().neg_()
    return (logits + gumbel).argmax(-1)


class Electra(nn.Module):
    """Generator and discriminator, trained together (Clark et al. 2020, sections 2 and 3.2).

    The generator has no token, position and segment embeddings of its own: as in the released code it shares the
    discriminator's, with their normalisation.

    Raises:
        ValueError: `vocab_size` is not set, or the generator cannot share the discriminator's embeddings.
    """

    def __init__(self, config: TransformerConfig, generator_config: TransformerConfig) -> None:
        """
        Args:
            config: of the discriminator.
            generator_config: its embeddings have the discriminator's width, vocabulary, positions and segments.
        """
        super().__init__()
        names = (
            *("vocab_size", "embedding_width", "max_positions", "positions", "num_segments"),
            *("scale_embeddings", "dropout"),
        )
        different = [
            f"{name} {getattr(generator_config, name)} instead of {getattr(config, name)}"
            for name in names
            if getattr(generator_config, name) != getattr(config, name)
        ]
        if different:
            raise ValueError(
                f"the generator shares the discriminator's embeddings, but it has {', '.join(different)}; set "
                "embedding_size to the width of the discriminator's embeddings, and leave the rest as it is there"
            )
        self.config = config
        embeddings = Embeddings(config)
        self.discriminator = Discriminator(config, embeddings)
        shared = SharedEmbeddings(generator_config, embeddings)
        self.generator = MaskedLanguageModel(generator_config, embeddings=shared)

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        token_positions: Tensor,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Both losses: `mlm` is the generator's cross-entropy over the predicted positions, `rtd` the discriminator's
        binary cross-entropy over all tokens. No gradient of the latter reaches the generator, because tokens are drawn.

        Other arguments and the result are as in `models.language_models`.

        Args:
            token_positions: [num_tokens] int64 indices of all tokens but padding.
        """
        encoder, losses, correct = self.generator.encoder, {}, {}
        predicted = encoder(
            input_ids, cu_seqlens=cu_seqlens, segment_ids=segment_ids, read=predicted_positions
        )
        losses["mlm"], correct["mlm"], correct[EACH] = self.generator.head.loss(
            predicted, encoder.embeddings.token_weight, targets
        )
        sampled = draw_tokens(self.generator, predicted)
        replaced_ids, is_replaced = replace_tokens(input_ids, predicted_positions, targets, sampled)
        scores = self.discriminator(replaced_ids, cu_seqlens=cu_seqlens, segment_ids=segment_ids)
        scores = scores.flatten().index_select(0, token_positions).float()
        labels = is_replaced.flatten().index_select(0, token_positions)
        losses["rtd"] = F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="sum")
        correct["rtd"] = ((scores.detach() > 0) == labels).sum()
        return losses, correct


def replace_tokens(
    input_ids: Tensor, predicted_positions: Tensor, targets: Tensor, sampled: Tensor
) -> tuple[Tensor, Tensor]:
    """The discriminator's input, [batch, length] int64, and its labels, [batch, length] bool.

    A drawn token that happens to be the right one counts as original (Clark et al. 2020, section 2).
    """
    replaced_ids = input_ids.flatten().index_copy(0, predicted_positions, sampled)
    is_replaced = torch.zeros_like(replaced_ids, dtype=torch.bool)
    is_replaced[predicted_positions] = sampled != targets
    return replaced_ids.view_as(input_ids), is_replaced.view_as(input_ids)
