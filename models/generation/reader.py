"""A network as generation uses it: it reads tokens and scores the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from models.causal_language_model import CausalLanguageModel
from models.sequence_to_sequence import Memory, SequenceToSequence


class Reader:
    """Reads some texts, each in the same number of rows (its beams or samples) that lie side by side."""

    def __init__(self, model: CausalLanguageModel | SequenceToSequence) -> None:
        self._cache = model.decoder.new_cache()
        self._copies = 1

    def read(self, input_ids: Tensor) -> Tensor:
        """[texts * copies, length] int64 tokens after those read before, to float32 [texts * copies, vocab_size]
        logits of the next token."""
        raise NotImplementedError

    def repeat(self, copies: int) -> None:
        """Give every text that many rows; until then it has one."""
        self._copies = copies
        if copies > 1:
            self._cache.select(torch.arange(self._cache.rows).repeat_interleave(copies))

    def reorder(self, rows: Tensor) -> None:
        """Continue with these rows, [texts * copies] int64; each must be of the text whose place it takes."""
        self._cache.select(rows)

    def keep(self, texts: Tensor) -> None:
        """Forget all texts but these, [kept] int64."""
        rows = texts[:, None] * self._copies + torch.arange(self._copies, device=texts.device)
        self._cache.select(rows.flatten())


class DecoderReader(Reader):
    """A decoder that reads prompts and continues them."""

    def __init__(
        self, model: CausalLanguageModel, attention_mask: Tensor | None, prefix_lengths: Tensor | None
    ) -> None:
        """
        Args:
            attention_mask: [texts, prompt length] bool, true at tokens, padded on the left; None without padding.
            prefix_lengths: [texts] tokens at the beginning of each prompt that are read both ways; None for none.
        """
        super().__init__(model)
        self._model = model
        self._mask = attention_mask
        self._prefix_lengths = prefix_lengths

    def read(self, input_ids: Tensor) -> Tensor:
        mask = self._mask
        if mask is not None:
            new = self._cache.length + input_ids.shape[1] - mask.shape[1]
            self._mask = mask = torch.nn.functional.pad(mask, (0, new), value=True)
            mask = mask.repeat_interleave(self._copies, 0)
        hidden = self._model.decoder(
            input_ids, attention_mask=mask, prefix_lengths=self._prefixes(), cache=self._cache
        )
        scaled = hidden[:, -1] * self._model.logit_scale
        return self._model.head(scaled, self._model.decoder.embeddings.token_weight).float()

    def _prefixes(self) -> Tensor | None:
        """[texts * copies] lengths of the prefixes; None where they hide and show nothing."""
        # What follows the prefix sees all of it anyway, unless a window would hide it.
        if self._prefix_lengths is None or (self._cache.length and self._model.config.local_window is None):
            return None
        return self._prefix_lengths.repeat_interleave(self._copies, 0)

    def keep(self, texts: Tensor) -> None:
        super().keep(texts)
        if self._mask is not None:
            self._mask = self._mask[texts]
        if self._prefix_lengths is not None:
            self._prefix_lengths = self._prefix_lengths[texts]


class EncoderDecoderReader(Reader):
    """A decoder that reads its own output, and a memory that all rows of a text share."""

    def __init__(self, model: SequenceToSequence, memory: Memory) -> None:
        super().__init__(model)
        self._model = model
        self._memory = memory

    def read(self, input_ids: Tensor) -> Tensor:
        hidden = self._model.decode(input_ids, self._memory, cache=self._cache)
        return self._model.project(hidden[:, -1]).float()

    def keep(self, texts: Tensor) -> None:
        super().keep(texts)
        self._cache.select_memory(texts)
        self._memory = self._memory.select(texts)


def check_numbers(scores: Tensor) -> None:
    """
    Raises:
        ValueError: there is NaN among the scores.
    """
    if scores.isnan().any():
        raise ValueError("the network's scores are NaN: its weights are damaged; take another checkpoint")
