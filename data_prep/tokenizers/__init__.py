"""Tokenizers: training, checking, and encoding in bulk; the kinds that can be trained are named here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from data_prep.tokenizers.byte_level_bpe import ByteLevelBPE
from data_prep.tokenizers.pretrained import PretrainedTokenizer
from data_prep.tokenizers.sentencepiece import SentencePiece
from data_prep.tokenizers.training import TrainedTokenizer
from data_prep.tokenizers.word_lexicon import WordLexicon
from data_prep.tokenizers.wordpiece import WordPiece

_TRAINED: tuple[type[TrainedTokenizer], ...] = (
    ByteLevelBPE,
    SentencePiece,
    WordLexicon,
    WordPiece,
)


def _kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", "pretrained" if "path" in value else "byte_level_bpe"))
    return str(getattr(value, "kind", "byte_level_bpe"))


if TYPE_CHECKING:
    AnyTokenizer = TrainedTokenizer | PretrainedTokenizer
else:
    _MEMBERS = tuple(
        Annotated[each, Tag(each.model_fields["kind"].default)] for each in (*_TRAINED, PretrainedTokenizer)
    )
    AnyTokenizer = Annotated[Union[_MEMBERS], Discriminator(_kind_of)]  # noqa: UP007
    """Settings of any tokenizer; without a `kind`, a `path` says pretrained, anything else trains byte-level BPE."""

__all__ = [
    "AnyTokenizer",
    "ByteLevelBPE",
    "PretrainedTokenizer",
    "SentencePiece",
    "TrainedTokenizer",
    "WordLexicon",
    "WordPiece",
]
