"""Mixed layers of a biLM: what networks that judge words or sentences are built on."""

from __future__ import annotations

from torch import Tensor, nn

from models.elmo.config import ElmoConfig
from models.elmo.encoder import ElmoEncoder
from models.elmo.representations import ScalarMix
from models.elmo.sentences import pad_sentences


class MixedWords(nn.Module):
    """A biLM, the mixture of its layers, and dropout (Peters et al. 2018, section 3.2).

    Args:
        num_labels: that the network on top scores.
        frozen: leave the biLM as it is; otherwise it is trained with the task.
        normalize: as in `ScalarMix`.
        l2: as in `ScalarMix`.
        dropout: probability of dropping representations of words.

    Raises:
        ValueError: `num_labels` is below 1.
    """

    def __init__(
        self,
        config: ElmoConfig,
        num_labels: int,
        *,
        frozen: bool = True,
        normalize: bool = False,
        l2: float = 0.001,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, not {num_labels}")
        self.config = config
        self.num_labels = num_labels
        self.encoder = ElmoEncoder(config, frozen=frozen)
        self.mix = ScalarMix(config.num_layers + 1, normalize=normalize, l2=l2)
        self.dropout = nn.Dropout(dropout)

    def mixed(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """[sentences, longest, width] representations after dropout, and [sentences, longest] bool, true at words;
        arguments as of `ElmoEncoder.forward`, made by `read_sentences`."""
        layers = self.mix(self.encoder(characters, words, cu_seqlens))
        padded, present = pad_sentences(layers[None], cu_seqlens)
        return self.dropout(padded[0]), present

    def penalty(self) -> Tensor:
        """The mixture's penalty: a scalar to add to the loss of a batch."""
        return self.mix.penalty()
