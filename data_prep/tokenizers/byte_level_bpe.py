"""Byte-level BPE (Radford et al. 2019): trained with RoBERTa's special tokens, or from a published vocabulary.

Trained ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4, then the 256 bytes, then merges as learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from data_prep.tokenizers.special import KNOWN_NAMES, SPECIAL_TOKENS, find_special_tokens
from data_prep.tokenizers.training import LETTERS_OR_DIGITS, TrainedTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ByteLevelBPE(TrainedTokenizer):
    """Train a byte-level BPE tokenizer, as GPT-2, RoBERTa and BART use it."""

    kind: Literal["byte_level_bpe"] = "byte_level_bpe"
    min_frequency: int = Field(default=2, ge=1)
    """A pair of symbols seen fewer times is never merged."""

    words: ClassVar[tuple[str, ...]] = LETTERS_OR_DIGITS

    def train(self, texts: Iterable[str]) -> tuple[str, dict[str, int]]:
        from tokenizers import pre_tokenizers, trainers

        tokenizer = _assemble({}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=self.min_frequency,
            special_tokens=_added_tokens(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return _finish(tokenizer), {}


def from_files(vocabulary: Path, merges: Path) -> str:
    """The `tokenizer.json` of GPT-2's two files: entries with ids as JSON, and merges, one a line.

    Raises:
        ValueError: the files are not such files.
    """
    from tokenizers import models

    return _finish(_assemble(*models.BPE.read_file(str(vocabulary), str(merges))))


def byte_alphabet() -> list[str]:
    """[256] the character that GPT-2 writes for each byte: printable bytes are themselves, the others follow on
    from U+0100 (Radford et al. 2019, `bytes_to_unicode` of the published encoder)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _finish(tokenizer: Tokenizer) -> str:
    from tokenizers import processors

    vocabulary = tokenizer.get_vocab()
    names = sorted((name for name in KNOWN_NAMES if name in vocabulary), key=vocabulary.__getitem__)
    tokenizer.add_special_tokens(_added_tokens(names))
    if "<s>" in vocabulary and "</s>" in vocabulary:
        ids = find_special_tokens(tokenizer)
        ends = ("</s>", ids["eos"]), ("<s>", ids["bos"])
        tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer.to_str(pretty=True)


def _added_tokens(names: Iterable[str]) -> list:
    from tokenizers import AddedToken

    # As in RoBERTa, a mask replaces a word and the space before it.
    return [AddedToken(name, special=True, normalized=False, lstrip=name == "<mask>") for name in names]
