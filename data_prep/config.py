"""The configuration of one preparation: which text, and what is made of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from data_prep.sources import AnySource


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ByteLevelBPE(_Config):
    """Train a byte-level BPE tokenizer on this corpus."""

    kind: Literal["byte_level_bpe"] = "byte_level_bpe"
    vocab_size: int = Field(default=32_768, ge=512, le=1 << 20)
    """Entries of the vocabulary, the five special tokens and 256 bytes included. Up to 65,536, tokens are
    stored in two bytes each."""
    train_bytes: int = Field(default=256 << 20, gt=0)
    """Train on about this many bytes of text: documents drawn evenly from the corpus."""
    min_frequency: int = Field(default=2, ge=1)
    """A pair of symbols seen fewer times is never merged."""


class PretrainedTokenizer(_Config):
    """Use a tokenizer that exists, so that the tokens fit another preparation or a published model."""

    kind: Literal["pretrained"] = "pretrained"
    path: Path
    """A `tokenizer.json` of Hugging Face tokenizers, or a directory (such as a token store) with one."""


def _tokenizer_kind(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", "pretrained" if "path" in value else "byte_level_bpe"))
    return str(getattr(value, "kind", "byte_level_bpe"))


AnyTokenizer = Annotated[
    Annotated[ByteLevelBPE, Tag("byte_level_bpe")] | Annotated[PretrainedTokenizer, Tag("pretrained")],
    Discriminator(_tokenizer_kind),
]
"""`kind` may be left out: a `path` says pretrained, anything else trains."""


class DataConfig(_Config):
    """One `cloze data prepare`."""

    name: str = Field(min_length=1)
    """What people call this data."""
    out: Path
    """Directory that will hold `documents/`, `dedup/`, `tokenizer/` and `tokens/`."""
    sources: tuple[AnySource, ...] = Field(min_length=1)
    """Where the text comes from, in the order in which it is stored."""
    min_characters: int = Field(default=200, ge=0)
    """Documents with fewer characters of text are dropped."""
    dedup: Literal["exact", "none"] = "exact"
    """`exact` keeps the first of all documents with the same text."""
    tokenizer: AnyTokenizer = ByteLevelBPE()
    """How text becomes ids."""
    sentences: Literal["blingfire", "none"] = "blingfire"
    """Sentence boundaries, for objectives that need them; with `none` a document is one sentence."""
    shard_bytes: int = Field(default=64 << 20, gt=0)
    """Bytes of source files that make one shard. Files are never split: a bigger one is a shard by itself."""
    max_rejects: int = Field(default=0, ge=0)
    """How many unreadable inputs are tolerated before the preparation fails."""

    @field_validator("sources")
    @classmethod
    def _distinct_names(cls, sources: tuple[AnySource, ...]) -> tuple[AnySource, ...]:
        repeated = [name for name, count in Counter(s.name for s in sources).items() if count > 1]
        if repeated:
            raise ValueError(f"two sources are named {repeated[0]}; names must differ")
        return sources
