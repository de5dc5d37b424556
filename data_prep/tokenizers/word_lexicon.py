"""Words with their characters, as ELMo reads them (Peters et al. 2018): frequent words are ids, others are spelled.

Ids: RoBERTa's five special tokens, 256 bytes that begin a word, 256 that continue one, then the most frequent
words. A word of the lexicon is one id. Any other word is spelled, a byte that begins it and bytes that continue it, so
that a token store keeps its characters. White space and punctuation separate words; the white space itself
is not kept. A one-byte word is the byte that begins it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from data_prep.ragged import Ragged
from data_prep.tokenizers.byte_level_bpe import byte_alphabet
from data_prep.tokenizers.special import SPECIAL_TOKENS
from data_prep.tokenizers.training import TrainedTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = "##"
"""Prefix of the name of a byte that continues a word; no word has it, because # is a word by itself."""
_FIRST_BYTE = len(SPECIAL_TOKENS)
_FIRST_CONTINUATION = _FIRST_BYTE + 256
_FIRST_WORD = _FIRST_CONTINUATION + 256


class WordLexicon(TrainedTokenizer):
    """Words with their characters, as ELMo reads them: the most frequent words are one id each, other words are
    spelled byte by byte."""

    kind: Literal["word_lexicon"] = "word_lexicon"
    vocab_size: int = Field(default=50_000, ge=1024, le=1 << 20)
    """Entries of the vocabulary: special tokens, 256 bytes that begin a word, 256 that continue one, and words."""
    min_frequency: int = Field(default=2, ge=1)
    """Rarer words are always spelled."""
    max_word_characters: int = Field(default=256, ge=16)
    """Longer words are always spelled."""

    def train(self, texts: Iterable[str]) -> tuple[str, dict[str, int]]:
        """As `TrainedTokenizer.train`: words are counted; of equally frequent ones the first in the alphabet counts."""
        splitter = _pre_tokenizer()
        counts: Counter[str] = Counter()
        for text in texts:
            found = splitter.pre_tokenize_str(text)
            counts.update(word for word, (start, end) in found if end - start <= self.max_word_characters)
        frequent = [(-count, word) for word, count in counts.items() if count >= self.min_frequency]
        words = [word for _, word in sorted(frequent) if len(word) > 1]
        return assemble(words[: self.vocab_size - _FIRST_WORD]).to_str(pretty=True), {}


def assemble(words: Iterable[str]) -> Tokenizer:
    """The tokenizer of a lexicon, given in the alphabet of `byte_alphabet` and in the order of ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    alphabet = byte_alphabet()
    entries = [*SPECIAL_TOKENS, *alphabet, *(PREFIX + byte for byte in alphabet), *words]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    # Without merges a word is taken whole, if the vocabulary has it, or else spelled.
    model = models.BPE(vocabulary, [], continuing_subword_prefix=PREFIX, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix=PREFIX, cleanup=False),
            decoders.Replace(" ", alphabet[ord(" ")]),
            decoders.ByteLevel(),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _pre_tokenizer():
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Decoder of a word lexicon: ids to words and their characters."""

    spelling: Ragged
    """Per id the UTF-8 bytes (uint8) of its text; none for special tokens."""
    continues: np.ndarray
    """[vocabulary] bool: whether the id continues the word of the id before it."""

    @classmethod
    def read(cls, tokenizer_json: str) -> Lexicon:
        """Read a tokenizer of this kind.

        Raises:
            ValueError: it is another kind.
        """
        import orjson

        parts: dict[str, Any] = orjson.loads(tokenizer_json)
        if not (
            parts["model"].get("ignore_merges") and parts["model"]["continuing_subword_prefix"] == PREFIX
        ):
            raise ValueError("this tokenizer is no word lexicon")
        to_byte = {character: byte for byte, character in enumerate(byte_alphabet())}
        entries = sorted(parts["model"]["vocab"].items(), key=lambda item: item[1])
        names = ["" if number < _FIRST_BYTE else name.removeprefix(PREFIX) for name, number in entries]
        spelling = [np.array([to_byte[character] for character in name], dtype=np.uint8) for name in names]
        numbers = np.arange(len(entries))
        return cls(Ragged.of(spelling), (numbers >= _FIRST_CONTINUATION) & (numbers < _FIRST_WORD))

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """[words] int64 first positions in `ids` of words (or special tokens); bytes at the very start that continue a
        word cut off are a word."""
        begins = ~self.continues[ids]
        begins[:1] = True
        return np.flatnonzero(begins)

    def word_ids(self, ids: np.ndarray, unknown: int) -> np.ndarray:
        """[words] the id of every word, and `unknown` for words that are spelled: what a softmax over words
        predicts."""
        starts = self.word_starts(ids)
        spelled = np.diff(np.append(starts, len(ids))) > 1
        spelled |= self.continues[ids[starts]]
        spelled |= (ids[starts] >= _FIRST_BYTE + 0x80) & (ids[starts] < _FIRST_CONTINUATION)
        return np.where(spelled, unknown, ids[starts])

    def spell(self, ids: np.ndarray) -> Ragged:
        """Per word the UTF-8 bytes (uint8) of all of it."""
        spelled = self.spelling.take(ids.astype(np.int64))
        return Ragged(spelled.values, spelled.offsets[np.append(self.word_starts(ids), len(ids))])

    def words(self, ids: np.ndarray) -> list[str]:
        """The words as text; bytes of a word cut off are replaced by U+FFFD."""
        spelled = self.spell(ids)
        return [spelled[number].tobytes().decode("utf-8", errors="replace") for number in range(len(spelled))]
