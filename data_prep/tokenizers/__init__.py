"""Tokenizers: training, checking, and encoding in bulk; the kinds that can be trained are named here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from data_prep.tokenizers import byte_level_bpe, sentencepiece, word_lexicon, wordpiece
from data_prep.tokenizers.config import (
    ByteLevelBPE,
    PretrainedTokenizer,
    SentencePiece,
    TrainedTokenizer,
    WordLexicon,
    WordPiece,
)

Train = Callable[[Iterable[str], Any], tuple[str, Mapping[str, int]]]
"""Trains on texts with the settings of its kind. Returns the `tokenizer.json`, the same bytes for the same texts, and
counts for the statistics."""


def _uncounted(train: Callable[[Iterable[str], Any], str]) -> Train:
    return lambda texts, config: (train(texts, config), {})


TRAINERS: Mapping[type[TrainedTokenizer], Train] = {
    ByteLevelBPE: _uncounted(byte_level_bpe.train),
    WordPiece: _uncounted(wordpiece.train),
    SentencePiece: sentencepiece.train_and_check,
    WordLexicon: _uncounted(word_lexicon.train),
}
"""Trainers, by their settings."""


def _kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", "pretrained" if "path" in value else "byte_level_bpe"))
    return str(getattr(value, "kind", "byte_level_bpe"))


if TYPE_CHECKING:
    AnyTokenizer = TrainedTokenizer | PretrainedTokenizer
else:
    _MEMBERS = tuple(
        Annotated[each, Tag(each.model_fields["kind"].default)] for each in (*TRAINERS, PretrainedTokenizer)
    )
    AnyTokenizer = Annotated[Union[_MEMBERS], Discriminator(_kind_of)]  # noqa: UP007
    """Settings of any tokenizer; without a `kind`, a `path` says pretrained, anything else trains byte-level BPE."""
