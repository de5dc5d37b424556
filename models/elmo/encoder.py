"""The biLM without its softmax: words by their characters, then LSTMs that read from the left and from the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.elmo.config import NUM_CHARACTERS, PADDING, ElmoConfig, spell_sentence
from models.elmo.lstm import ProjectedLSTM, pack_by_time


class DrawnLinear(nn.Linear):
    """A linear layer that begins with weights from N(0, 1 / in_features), as all of the released code, and a
    constant bias."""

    def __init__(self, in_features: int, out_features: int, *, initial_bias: float = 0.0) -> None:
        super().__init__(in_features, out_features)
        self.initial_bias = initial_bias

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        if name == "bias":
            return torch.full(shape, self.initial_bias)
        return torch.empty(shape).normal_(0.0, self.in_features**-0.5, generator=generator)


class CharacterEmbedding(nn.Embedding):
    """Characters as vectors, at first from U(-1, 1), as in the released code."""

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=generator)


class CharacterConvolution(nn.Conv1d):
    """Filters over neighbouring characters, at first from U(-0.05, 0.05) (Kim et al. 2016, section 4.1), biases 0."""

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        if name == "bias":
            return torch.zeros(shape)
        return torch.empty(shape).uniform_(-0.05, 0.05, generator=generator)


class HighwayLayer(nn.Module):
    """g * relu(W x + b) + (1 - g) * x with g = sigmoid(V x + c) (Srivastava et al. 2015, equation 3).

    The gate's bias begins at -2, so that at first most of x is carried.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = DrawnLinear(size, size)
        self.gate = DrawnLinear(size, size, initial_bias=-2.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """[words, size] to the same."""
        return torch.lerp(inputs, F.relu(self.transform(inputs)), torch.sigmoid(self.gate(inputs)))


class TokenLayer(nn.Module):
    """A vector for every word from nothing but its characters (Kim et al. 2016, section 2; Peters et al. 2018, section
    3.4; Jozefowicz et al. 2016, section 3.3)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.characters = CharacterEmbedding(NUM_CHARACTERS, config.character_size)
        self.convolutions = nn.ModuleList(
            CharacterConvolution(config.character_size, number, width) for width, number in config.filters
        )
        self.highways = nn.ModuleList(
            HighwayLayer(config.num_filters) for _ in range(config.num_highway_layers)
        )
        self.projection = DrawnLinear(config.num_filters, config.projection_size)

    def forward(self, characters: Tensor) -> Tensor:
        """[words, max_characters] int64 ids of `models.elmo.config.spell` to [words, projection_size].

        Padding is a character like any other, as in the released code.

        Raises:
            ValueError: the words do not have `max_characters` characters.
        """
        if characters.dim() != 2 or characters.shape[1] != self.config.max_characters:
            raise ValueError(
                f"characters must have shape [words, {self.config.max_characters}], as max_characters of the network "
                f"says, not {list(characters.shape)}"
            )
        # Columns whose windows hold nothing but padding are cut; one such window stays for every filter, so that no
        # maximum changes.
        used = int((characters != PADDING).any(0).sum()) if len(characters) else 0
        widest = max(width for width, _ in self.config.filters)
        embedded = self.characters(characters[:, : used + widest]).transpose(1, 2)
        # `max` sends the gradient to one of equal windows, `amax` would share it out, at half the speed.
        found = [F.relu(convolution(embedded).max(-1).values) for convolution in self.convolutions]
        hidden = torch.cat(found, dim=-1)
        for highway in self.highways:
            hidden = highway(hidden)
        return self.projection(hidden)


class ElmoInputs(NamedTuple):
    """Arguments of `ElmoEncoder.forward`, in their order; a sentence is a piece."""

    characters: Tensor
    words: Tensor
    cu_seqlens: Tensor

    def to(self, device: torch.device | str) -> ElmoInputs:
        return ElmoInputs(*(tensor.to(device) for tensor in self))


def read_sentences(sentences: Sequence[Sequence[str]], max_characters: int) -> ElmoInputs:
    """Spell the words of sentences.

    Raises:
        ValueError: there are no sentences, or one is a string instead of a list of words.
    """
    if not sentences:
        raise ValueError("there are no sentences; give at least one list of words")
    if any(isinstance(sentence, str) for sentence in sentences):
        raise ValueError("a sentence is a list of words, not a string; split it first")
    rows: dict[tuple[int, ...], int] = {}
    words: list[int] = []
    boundaries = [0]
    for sentence in sentences:
        spelled = (tuple(word) for word in spell_sentence(sentence, max_characters))
        words += [rows.setdefault(word, len(rows)) for word in spelled]
        boundaries.append(len(words))
    return ElmoInputs(torch.tensor(list(rows)), torch.tensor(words), torch.tensor(boundaries))


def pad_sentences(layers: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Put each sentence in a row of its own, without the marks of its begin and end.

    Args:
        layers: [layers, words, width].
        cu_seqlens: [sentences + 1] boundaries of the sentences among the words, each with both marks.

    Returns:
        [layers, sentences, longest, width] with zeros after shorter sentences, and [sentences, longest] bool, true at
        words. There is at least one column.
    """
    boundaries = cu_seqlens.long()
    lengths = boundaries.diff() - 2
    columns = torch.arange(max(1, int(lengths.max())), device=layers.device)
    present = columns < lengths[:, None]
    places = (boundaries[:-1, None] + 1 + columns).clamp_max(layers.shape[1] - 1)
    found = layers.index_select(1, places.flatten()).unflatten(1, places.shape)
    return found.masked_fill(~present[None, :, :, None], 0.0), present


class ElmoEncoder(nn.Module):
    """A token layer shared by both directions, and `num_layers` LSTM layers in each (Peters et al. 2018, sections 3.1
    and 3.4).

    From the second LSTM on, a layer adds its input to its output. LSTMs begin again in every piece; the released code
    carried their state from one batch to the next.

    Args:
        frozen: compute no gradients and never drop out, as for a biLM that gives representations to another network.
    """

    def __init__(self, config: ElmoConfig, *, frozen: bool = False) -> None:
        super().__init__()
        self.config = config
        self.frozen = frozen
        self.tokens = TokenLayer(config)
        self.forward_layers = _lstm_layers(config)
        self.backward_layers = _lstm_layers(config)
        self.dropout = nn.Dropout(config.dropout)
        if frozen:
            self.requires_grad_(False)
            self.eval()

    def train(self, mode: bool = True) -> ElmoEncoder:
        """As in every module, but a frozen encoder stays as it is."""
        super().train(mode and not self.frozen)
        return self

    def forward(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> Tensor:
        """All layers of every word (Peters et al. 2018, section 3.2).

        Args:
            characters: [distinct words, max_characters] int64; each word that occurs is computed once.
            words: [words] int64 rows of `characters`, piece after piece, each with the marks for begin and end of a
                sentence.
            cu_seqlens: [pieces + 1] boundaries of the pieces among the words; no piece is empty.

        Returns:
            [num_layers + 1, words, 2 x projection_size]: the token layer twice side by side, then per layer the
            outputs of the LSTM from the left and of the LSTM from the right.
        """
        from_left, from_right = self.directions(characters, words, cu_seqlens)
        return torch.stack([torch.cat(pair, dim=-1) for pair in zip(from_left, from_right, strict=True)])

    def directions(
        self, characters: Tensor, words: Tensor, cu_seqlens: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers from the left and from the right: `num_layers` + 1 tensors [words, projection_size] each."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            packing = pack_by_time(cu_seqlens, len(words))
            tokens = self.tokens(characters)
            at_places = tokens.index_select(0, words)
            both = (self.forward_layers, packing.forward), (self.backward_layers, packing.backward)
            from_left, from_right = (
                self._read(layers, at_places, order, packing.batch_sizes) for layers, order in both
            )
        return from_left, from_right

    def _read(
        self, layers: nn.ModuleList, tokens: Tensor, order: Tensor, batch_sizes: Sequence[int]
    ) -> list[Tensor]:
        """The words and the output of each layer, at the places of the words."""
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        hidden = tokens.index_select(0, order)
        found = [tokens]
        for number, layer in enumerate(layers):
            hidden = self.dropout(hidden)
            output = cast(Tensor, layer(hidden, batch_sizes))
            hidden = hidden + output if number else output
            found.append(hidden.index_select(0, inverse))
        return found


def _lstm_layers(config: ElmoConfig) -> nn.ModuleList:
    sizes = (config.projection_size, config.cell_size, config.projection_size)
    clips = {"cell_clip": config.cell_clip, "projection_clip": config.projection_clip}
    return nn.ModuleList(ProjectedLSTM(*sizes, **clips) for _ in range(config.num_layers))
