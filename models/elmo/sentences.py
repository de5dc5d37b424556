"""Inputs of an `ElmoEncoder` from sentences of words, and its layers sorted by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.elmo.characters import spell_sentence


class ElmoInputs(NamedTuple):
    """Arguments of `ElmoEncoder.forward`, in their order."""

    characters: Tensor
    """[distinct words, max_characters] int64."""
    words: Tensor
    """[words] int64 rows of `characters`, with a begin before every sentence and an end after it."""
    cu_seqlens: Tensor
    """[sentences + 1] int64 boundaries of the sentences among the words."""

    def to(self, device: torch.device | str) -> ElmoInputs:
        """Move all tensors to a device."""
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
        [layers, sentences, longest, width] with zeros behind shorter sentences, and [sentences, longest] bool, true at
        words. There is at least one column.
    """
    boundaries = cu_seqlens.long()
    lengths = boundaries.diff() - 2
    columns = torch.arange(max(1, int(lengths.max())), device=layers.device)
    present = columns < lengths[:, None]
    places = (boundaries[:-1, None] + 1 + columns).clamp_max(layers.shape[1] - 1)
    found = layers.index_select(1, places.flatten()).unflatten(1, places.shape)
    return found.masked_fill(~present[None, :, :, None], 0.0), present
