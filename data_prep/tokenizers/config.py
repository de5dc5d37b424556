"""The tokenizer of a preparation: one that it trains, or one that exists."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cluster.artefacts.places import PlaceSetting


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrainedTokenizer(_Config):
    """Settings of all tokenizers that are trained on the corpus."""

    kind: str
    vocab_size: int = Field(default=32_768, ge=512, le=1 << 20)
    """Entries of the vocabulary, special tokens and bytes included. Up to 65,536, tokens are stored in two bytes
    each."""
    train_bytes: int = Field(default=256 << 20, gt=0)
    """Train on about this many bytes of text, drawn from the corpus a document at a time."""
    weights: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Share of the training text that each source (by its name) gives, relative to the others. By default a source
    gives as much as its size."""
    alpha: float = Field(default=1.0, ge=0, le=1)
    """Temperature over languages: a language with the share q of the text gives a share proportional to
    q^alpha. 1 keeps the shares, 0.7 is XLM's and mBART's, 0 makes all languages equal. What a small language lacks
    is made up for by taking its documents more than once."""

    max_word_characters: int = Field(default=256, ge=16)
    """Longer words (characters), such as DNA, base64 or a rule of equals signs, are cut for training, and the first 16
    parts are trained on: the time of trainers grows with the square of a word's length. Encoding takes every word as
    it is. (In 182 million characters of articles and novels no word is longer.)"""

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        if weights is not None and not sum(weights.values()) > 0:
            raise ValueError("at least one source needs a weight above 0")
        return weights


class ByteLevelBPE(TrainedTokenizer):
    """Train a byte-level BPE tokenizer, as GPT-2, RoBERTa and BART use it."""

    kind: Literal["byte_level_bpe"] = "byte_level_bpe"
    min_frequency: int = Field(default=2, ge=1)
    """A pair of symbols seen fewer times is never merged."""


class WordPiece(TrainedTokenizer):
    """Train a WordPiece tokenizer, as BERT and ELECTRA use it."""

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: int = Field(default=30_522, ge=512, le=1 << 20)
    """Entries of the vocabulary, special tokens included."""
    lowercase: bool | Literal["auto"] = "auto"
    """Lower the case of all text and take its accents off, as BERT uncased does; that also takes Hangul apart, and the
    text cannot be written again. `auto` does so where all documents are English, by their `lang`."""
    min_frequency: int = Field(default=2, ge=1)
    """A pair of symbols seen fewer times is never merged."""
    max_word_characters: int = Field(default=100, ge=16)
    """Longer words (characters) are cut for training; encoding makes `[UNK]` of words longer than 100."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Characters at the start or inside of words; rarer ones become `[UNK]`. None takes 1,000, or as many as
    leave 1 in 10,000 characters of the text unknown, up to a quarter of `vocab_size`."""


class SentencePiece(TrainedTokenizer):
    """Train a SentencePiece model, as T5 and mBART use it."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    model: Literal["unigram", "bpe"] = "unigram"
    """Unigram language model (Kudo 2018) or byte-pair encoding."""
    character_coverage: float = Field(default=0.9995, gt=0.9, le=1)
    """Share of all characters of the text that must be in the vocabulary by themselves."""
    byte_fallback: bool = True
    """Spell characters that the vocabulary lacks by their bytes instead of `<unk>`."""
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's normalisation rule; T5 and mBART use `nmt_nfkc`, `_cf` folds case."""
    sentinels: int = Field(default=0, ge=0, le=1000)
    """T5's sentinels: the last entries, `<extra_id_0>` being the very last. T5 has 100."""
    languages: tuple[str, ...] = ()
    """Language tags, such as mBART's `en_XX` and `de_DE`; entries after the pieces, in this order."""

    @model_validator(mode="after")
    def _room_for_pieces(self) -> SentencePiece:
        if self.vocab_size < self.sentinels + len(self.languages) + (400 if self.byte_fallback else 100):
            raise ValueError("vocab_size leaves no room for pieces beside bytes, sentinels and languages")
        if len(set(self.languages)) < len(self.languages) or not all(self.languages):
            raise ValueError("languages must be different, non-empty tags")
        return self


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


class PretrainedTokenizer(_Config):
    """Use a tokenizer that exists, so that the tokens fit another preparation or a published model."""

    kind: Literal["pretrained"] = "pretrained"
    path: PlaceSetting
    """A `tokenizer.json` of Hugging Face tokenizers, a SentencePiece `.model`, or a directory with one of them, with
    GPT-2's `encoder.json` and `vocab.bpe` (or `vocab.json` and `merges.txt`), or with BERT's `vocab.txt`; or the fsspec
    URI of a preparation, its tokenizer or its tokens."""
    lowercase: bool | Literal["auto"] = "auto"
    """Whether a `vocab.txt` is one of lower-cased text without accents. `auto`: it is when no entry holds a
    capital letter, special tokens and unused entries aside."""
