"""The shape of an ELMo network, and words as characters.

The released models have this alphabet: the bytes of UTF-8, marks for the begin and the end of a sentence and of a
word, and padding, shifted by one so that 0 means no word at all: 262 ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from models.fields import Rule, Settings, at_least, required_vocab_size

SHIFT = 1
"""Id of byte 0; id 0 is kept for places without a word."""
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = (SHIFT + 256 + number for number in range(5))
"""Ids after the bytes. A sentence's begin and end are words of one such character."""
NUM_CHARACTERS = SHIFT + 256 + 5


def spell(word: bytes, max_characters: int) -> list[int]:
    """The `max_characters` ids of a word given in UTF-8; a longer one is cut at a byte."""
    return _framed([SHIFT + byte for byte in word[: max_characters - 2]], max_characters)


def spell_sentence(words: Sequence[str], max_characters: int) -> list[list[int]]:
    """The ids of a sentence's words, with its begin before them and its end after them."""
    return [
        _framed([SENTENCE_BEGIN], max_characters),
        *(spell(word.encode("utf-8", errors="surrogatepass"), max_characters) for word in words),
        _framed([SENTENCE_END], max_characters),
    ]


def _framed(inner: list[int], max_characters: int) -> list[int]:
    framed = [WORD_BEGIN, *inner, WORD_END]
    return framed + [PADDING] * (max_characters - len(framed))


@dataclass(frozen=True)
class ElmoConfig(Settings):
    """A bidirectional language model over characters.

    The defaults are the original, 93.6 million parameters without its softmax (Peters et al. 2018, section 3.4; the
    released training script).
    """

    network: Literal["elmo"] = "elmo"
    """The kind of network."""
    vocab_size: int | None = None
    """Words that the softmax predicts; None until the tokenizer is known. Words are read by their characters, so
    this limits the predictions only."""
    max_characters: int = 50
    """Characters of a word, with those that mark its begin and its end; longer words are cut. At least as many as the
    widest filter, and at least 3."""
    character_size: int = 16
    """Width of the character embedding."""
    filters: tuple[tuple[int, int], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    """Convolutions over the characters of a word: [width in characters, number of filters] each."""
    num_highway_layers: int = 2
    """Highway layers after the convolutions; 0 for none."""
    projection_size: int = 512
    """Width of the LSTMs' input, and of the output of each direction."""
    num_layers: int = 2
    """LSTM layers in each direction."""
    cell_size: int = 4096
    """Units of an LSTM layer in one direction."""
    cell_clip: float | None = 3.0
    """Largest absolute value of a cell; > 0, or None for no limit."""
    projection_clip: float | None = 3.0
    """Largest absolute value of an LSTM's output; > 0, or None for no limit."""
    dropout: float = 0.1
    """Probability, in [0, 1), of dropping the inputs of each LSTM layer and of the softmax."""

    def rules(self) -> Mapping[str, Rule]:
        return {
            "num_highway_layers": at_least(0),
            "max_characters": at_least(3),
            "filters": Rule(
                lambda filters: (
                    filters and all(len(each) == 2 and all(map(at_least(1).allows, each)) for each in filters)
                ),
                "pairs of whole numbers above 0, [width, number]",
            ),
        }

    def fit_problems(self) -> list[str]:
        widest = max(width for width, _ in self.filters)
        problem = (
            f"filters has width {widest}, but max_characters is {self.max_characters}; raise max_characters"
        )
        return [problem] if widest > self.max_characters else []

    @property
    def num_filters(self) -> int:
        """Filters of all widths: the size of the highway layers."""
        return sum(number for _, number in self.filters)

    @property
    def representation_size(self) -> int:
        """Width of each layer's representation of a word: both directions side by side."""
        return 2 * self.projection_size

    def require_vocab_size(self) -> int:
        """See `required_vocab_size`."""
        return required_vocab_size(self.vocab_size)
