"""Text to token ids as RoBERTa takes it: `<s> a </s>` and `<s> a </s></s> b </s>` (Liu et al. 2019, code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from cluster.errors import CorruptArtefactError, MismatchError, MissingInputError
from pipeline.finetune.tasks.base import Example

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
SPECIALS_OF_SINGLE = 2
SPECIALS_OF_PAIR = 4


@dataclass(frozen=True, slots=True)
class EncodedExamples:
    """Examples as token ids, back to back."""

    values: np.ndarray
    """int64 [tokens]: the token ids of all examples."""
    offsets: np.ndarray
    """int64 [examples + 1]: example `i` is `values[offsets[i]:offsets[i + 1]]`."""
    labels: np.ndarray
    """int64 [examples]."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]: tokens of each, special tokens included."""
        return np.diff(self.offsets)


class SequenceEncoder:
    """Encodes examples with a `tokenizer.json`."""

    def __init__(self, tokenizer_path: Path) -> None:
        """Read the tokenizer.

        Raises:
            MissingInputError: there is no such file.
            CorruptArtefactError: it cannot be read.
            MismatchError: it has no `<s>`, `</s>` or `<pad>`.
        """
        if not tokenizer_path.is_file():
            raise MissingInputError(f"There is no tokenizer {tokenizer_path}.")
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_path))
        except Exception as error:  # tokenizers raises bare Exception for every unreadable file
            raise CorruptArtefactError(f"{tokenizer_path} cannot be read: {error}") from None
        # The file may ask for truncation or padding, which would act on each text of a pair by itself.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = {token: self._tokenizer.token_to_id(token) for token in (BOS, EOS, PAD)}
        known = {token: number for token, number in ids.items() if number is not None}
        if absent := sorted(ids.keys() - known.keys()):
            raise MismatchError(
                f"The tokenizer {tokenizer_path} has no {' and no '.join(absent)}.",
                next_step="start from a model whose tokenizer has the special tokens of RoBERTa",
            )
        self._bos, self._eos = known[BOS], known[EOS]
        self.pad_id: int = known[PAD]
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, examples: Sequence[Example], max_length: int) -> EncodedExamples:
        """Encode; no example gets more than `max_length` tokens, special tokens included."""
        first = self._ids([example.text_a for example in examples])
        paired = [number for number, example in enumerate(examples) if example.text_b is not None]
        second = dict(zip(paired, self._ids([examples[n].text_b or "" for n in paired]), strict=True))
        rows = [self._assemble(ids, second.get(number), max_length) for number, ids in enumerate(first)]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        values = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=int(offsets[-1]))
        labels = np.asarray([example.label for example in examples], dtype=np.int64)
        return EncodedExamples(values=values, offsets=offsets, labels=labels)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _assemble(self, first: list[int], second: list[int] | None, max_length: int) -> list[int]:
        if second is None:
            return [self._bos, *first[: max_length - SPECIALS_OF_SINGLE], self._eos]
        kept_first, kept_second = longest_first(len(first), len(second), max_length - SPECIALS_OF_PAIR)
        return [self._bos, *first[:kept_first], self._eos, self._eos, *second[:kept_second], self._eos]


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """How many tokens of a pair are kept when tokens are taken off the longer text until both fit.

    The same as removing one token at a time, from the second text when both are equally long (what
    `transformers` calls `longest_first`), without the loop.
    """
    if first + second <= budget:
        return first, second
    kept_first = min(first, max(budget - second, (budget + 1) // 2))
    return kept_first, min(second, budget - kept_first)
