"""Which tokenizer a preparation uses: one that it trains, or one that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


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
