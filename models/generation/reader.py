"""A network as generation uses it: it reads tokens and scores the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from models.language_models import CausalLanguageModel, SequenceToSequence
from models.layout import Memory


class Reader:
    """Reads some texts, each in the same number of rows (its beams or samples) that lie side by side: prompts that a
    decoder continues, or the output of an encoder-decoder, whose memory all rows of a text share."""

    def __init__(
        self,
        model: CausalLanguageModel | SequenceToSequence,
        *,
        attention_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        memory: Memory | None = None,
    ) -> None:
        """
        Args:
            attention_mask: [texts, prompt length] bool, true at tokens, padded on the left; None without padding.
            prefix_lengths: [texts] tokens at the beginning of each prompt that are read both ways; None for none.
            memory: of an encoder-decoder, which takes neither of the others.
        """
        self._model = model
        self._mask = attention_mask
        self._prefix_lengths = prefix_lengths
        self._memory = memory
        self._cache = model.decoder.new_cache()
        self._copies = 1

    def read(self, input_ids: Tensor) -> Tensor:
        """[texts * copies, length] int64 tokens after those read before, to float32 [texts * copies, vocab_size]
        logits of the next token."""
        model, mask, prefixes = self._model, self._mask, self._prefix_lengths
        if isinstance(model, SequenceToSequence):
            assert self._memory is not None
            hidden = model.decoder(input_ids, memory=self._memory, cache=self._cache)
            return model.project(hidden[:, -1]).float()
        if mask is not None:
            new = self._cache.length + input_ids.shape[1] - mask.shape[1]
            self._mask = mask = torch.nn.functional.pad(mask, (0, new), value=True)
            mask = mask.repeat_interleave(self._copies, 0)
        # Tokens after the prefix see all of it anyway, unless a window would hide it.
        if prefixes is not None and self._cache.length and model.config.local_window is None:
            prefixes = None
        elif prefixes is not None:
            prefixes = prefixes.repeat_interleave(self._copies, 0)
        hidden = model.decoder(input_ids, attention_mask=mask, prefix_lengths=prefixes, cache=self._cache)
        return model.project(hidden[:, -1]).float()

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
        if self._mask is not None:
            self._mask = self._mask[texts]
        if self._prefix_lengths is not None:
            self._prefix_lengths = self._prefix_lengths[texts]
        if self._memory is not None:
            self._cache.select_memory(texts)
            self._memory = self._memory.select(texts)


def check_numbers(scores: Tensor) -> None:
    """
    Raises:
        ValueError: there is NaN among the scores.
    """
    if scores.isnan().any():
        raise ValueError("the network's scores are NaN: its weights are damaged; take another checkpoint")
