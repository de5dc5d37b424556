"""The tokenizer of a network, the special tokens around its sequences, and the tokenizer of an export, which writes
them as they stood in training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.processors import TemplateProcessing

from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError
from data_prep.ragged import Ragged
from data_prep.tokenizers.special import NAMES, REQUIRED_ROLES, find_special_tokens, vocabulary_size
from models.config import ElmoConfig, NetworkConfig, TransformerConfig

if TYPE_CHECKING:
    from torch import Tensor

    from models.generation.config import GenerationConfig

_AT_ONCE = 4096


class TextTokenizer:
    """A `tokenizer.json` that gives ids without special tokens."""

    def __init__(self, path: Path) -> None:
        """Read the tokenizer.

        Raises:
            MissingInputError: there is no such file.
            CorruptArtefactError: it cannot be read.
            MismatchError: it has no token to begin, end or pad a sequence.
        """
        if not path.is_file():
            raise MissingInputError(f"There is no tokenizer {path}.")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception for every unreadable file
            raise CorruptArtefactError(f"{path} cannot be read: {error}") from None
        # The file may ask for truncation or padding, which would act on each text of a pair by itself.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.path = path
        self.special = find_special_tokens(self._tokenizer)
        """Ids by role: `bos`, `eos` and `pad`, and further roles that the vocabulary has."""
        if absent := [role for role in REQUIRED_ROLES if role not in self.special]:
            known = "; ".join(f"{role}: {', '.join(NAMES[role])}" for role in absent)
            raise MismatchError(
                f"The tokenizer {path} has no {' and no '.join(absent)} token.",
                next_step=f"start from a model whose tokenizer has one under a usual name ({known})",
            )
        self.vocab_size: int = vocabulary_size(self._tokenizer)

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return self.special["pad"]

    def rows(self, texts: Sequence[str]) -> Ragged:
        """Token ids of each text, int64."""
        return Ragged.of([np.array(found.ids, dtype=np.int64) for found in self._encode(texts)])

    def ids_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Token ids of each text, int64 [tokens], and int64 [tokens, 2]: the span of characters of each token, from and
        up to (exclusive). Byte tokens that share a character all have its span."""
        return [
            (np.array(found.ids, dtype=np.int64), np.array(found.offsets, dtype=np.int64).reshape(-1, 2))
            for found in self._encode(texts)
        ]

    def _encode(self, texts: Sequence[str]) -> Iterator[Encoding]:
        # `tokenizers` keeps many times as much of a text as the text itself.
        for first in range(0, len(texts), _AT_ONCE):
            yield from self._tokenizer.encode_batch(
                [*texts[first : first + _AT_ONCE]], add_special_tokens=False
            )

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode each row of ids, without white space around the text, and without special tokens: those that the file
        calls so, and those with a role, as in `transformers`."""
        special_ids = {*self.special.values()}
        kept = [[number for number in row if number not in special_ids] for row in rows]
        return [text.strip() for text in self._tokenizer.decode_batch(kept)]

    def token(self, number: int) -> str:
        """The token with an id, as the vocabulary writes it."""
        return str(self._tokenizer.id_to_token(number))

    def with_special_tokens(self, more: Sequence[str] = ()) -> Tokenizer:
        """A copy that reads `more` tokens, and those that begin, end and pad a text, as single tokens wherever a text
        names them. `transformers` also makes those with a role special where the file does not say so."""
        found = Tokenizer.from_str(self._tokenizer.to_str())
        known = {token.content for token in found.get_added_tokens_decoder().values()}
        named = {*map(self.token, (self.special[role] for role in REQUIRED_ROLES)), *more}
        found.add_special_tokens([AddedToken(token) for token in sorted(named - known)])
        return found

    def id_of(self, token: str) -> int | None:
        """The id of a token, such as a language tag; None when the vocabulary lacks it."""
        return self._tokenizer.token_to_id(token)


@dataclass(frozen=True, slots=True)
class SequenceFormat:
    """The special tokens of a text, or of two."""

    first: tuple[int, ...]
    """Before the first text."""
    between: tuple[int, ...]
    """Between the two texts of a pair."""
    last: tuple[int, ...]
    """Behind the last text."""
    has_segments: bool = False
    """Whether the second text, with the token after it, is segment 1."""

    @property
    def specials_of_single(self) -> int:
        """Special tokens of a text by itself."""
        return len(self.first) + len(self.last)

    @property
    def specials_of_pair(self) -> int:
        """Special tokens of a pair."""
        return self.specials_of_single + len(self.between)


def sequence_format(network: NetworkConfig, tokenizer: TextTokenizer) -> SequenceFormat:
    """The special tokens around the texts that a network classifies, as published for its kind.

    - Encoders: `[CLS] a [SEP] b [SEP]` with two segments (Devlin et al. 2019, figure 2) where the network knows
      segments, otherwise `<s> a </s></s> b </s>` (Liu et al. 2019, released code).
    - Decoders: `<s> a </s> b </s>`: the special tokens of pre-training serve as start, delimiter and extract token
      (Radford et al. 2018, section 3.3).
    - Encoder-decoders: as RoBERTa (Lewis et al. 2020, section 5.1); T5 begins no text with a special token, and puts
      one between two.
    - ELMo: words only; the network adds begin and end of a sentence itself.
    """
    if isinstance(network, ElmoConfig):
        return SequenceFormat((), (), ())
    bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
    has_segments = network.network == "encoder" and network.num_segments > 1
    is_t5 = network.network == "encoder_decoder" and starts_with_padding(network)
    between = (eos,) if has_segments or is_t5 or network.network == "decoder" else (eos, eos)
    return SequenceFormat(() if is_t5 else (bos,), between, (eos,), has_segments)


def starts_with_padding(network: NetworkConfig) -> bool:
    """Whether a decoder starts with `<pad>`, as in T5 (Raffel et al. 2020), recognised by its relative positions."""
    return isinstance(network, TransformerConfig) and network.positions == "relative_bias"


@dataclass(frozen=True, slots=True)
class GenerationFormat:
    """The special tokens of the source and the target of an encoder-decoder."""

    source: SequenceFormat
    target: SequenceFormat
    start: int
    """The start token of the decoder."""


def generation_format(
    network: NetworkConfig,
    tokenizer: TextTokenizer,
    language: str | None,
    written_language: str | None = None,
) -> GenerationFormat:
    """The special tokens around source and target of an encoder-decoder.

    `<s> a </s>` on both sides and a start `</s>` as in BART (Lewis et al. 2020, released code); `a </s>` and a start
    `<pad>` for T5 (Raffel et al. 2020), recognised by its relative positions; with a language, `a </s> [tag]` and
    the tag as the start (Liu et al. 2020, section 2.1).

    Args:
        language: tag of the sources; None for networks without language tags.
        written_language: tag of the targets; None takes the one of the sources.

    Raises:
        MismatchError: the vocabulary has no such language tag.
    """
    bos, eos = (tokenizer.special["bos"],), (tokenizer.special["eos"],)
    if language is not None:
        read, written = (_tag_id(tokenizer, name) for name in (language, written_language or language))
        return GenerationFormat(SequenceFormat((), (), (*eos, read)), SequenceFormat((), (), eos), written)
    if starts_with_padding(network):
        return GenerationFormat(
            SequenceFormat((), (), eos), SequenceFormat((), (), eos), tokenizer.special["pad"]
        )
    return GenerationFormat(SequenceFormat(bos, (), eos), SequenceFormat(bos, (), eos), eos[0])


def _tag_id(tokenizer: TextTokenizer, language: str) -> int:
    tag = tokenizer.id_of(language)
    if tag is None:
        raise MismatchError(
            f"The tokenizer {tokenizer.path} has no language tag {language}.",
            next_step="set `language` to a tag that the network was pre-trained with, or to null",
        )
    return tag


EMBEDDING = "decoder.embeddings.tokens.weight"
"""Token embeddings of a decoder that classifies."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a network reads and writes in a task."""

    around: SequenceFormat
    """The tokens around its texts."""
    search: GenerationConfig | None = None
    """How it writes; None where it writes nothing."""
    cut: Literal["left", "right"] = "right"
    """The side where too long texts are cut."""
    special_tokens: tuple[str, ...] = ()
    """Tokens that are read as one wherever a text names them, and left out of what was written."""


def with_template(
    tokenizer: TextTokenizer, around: SequenceFormat, special_tokens: Collection[str] = ()
) -> str:
    """A `tokenizer.json` that puts tokens around a text and a pair of texts as fine-tuning did."""
    found = Tokenizer.from_file(str(tokenizer.path))
    known = {token.content for token in found.get_added_tokens_decoder().values() if token.special}
    absent = sorted(set(special_tokens) - known)
    if _writes(found, around) and not (absent or found.padding or found.truncation):
        return tokenizer.path.read_text(encoding="utf-8")
    found.no_padding()
    found.no_truncation()
    found.add_special_tokens([AddedToken(token) for token in absent])
    found.post_processor = _template(found, around)
    return found.to_str()


def with_own_padding(
    tokenizer_json: str, network: TransformerConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, TransformerConfig, dict[str, Tensor]]:
    """Tokenizer, shape and weights of a decoder whose padding is no longer its last token; its scores stay the same.

    The new token's embedding is zeros; it is never read, because attention and classification leave padding out.
    """
    import torch

    found = Tokenizer.from_str(tokenizer_json)
    roles = find_special_tokens(found)
    if roles["pad"] == roles["eos"]:
        found.add_special_tokens([NAMES["pad"][0]])
        tokenizer_json = found.to_str()
    table = tensors[EMBEDDING]
    rows = max(len(table), find_special_tokens(found)["pad"] + 1)
    grown = torch.cat([table, table.new_zeros(rows - len(table), table.shape[1])])
    return tokenizer_json, replace(network, vocab_size=rows), {**tensors, EMBEDDING: grown}


def _writes(tokenizer: Tokenizer, around: SequenceFormat) -> bool:
    """Whether the tokenizer's own template is this one."""
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "b")
    begun = [*around.first, *first, *around.between]
    ended = [*second, *around.last]
    segments = [0] * len(begun) + [1] * len(ended)
    return (
        single.ids == [*around.first, *first, *around.last]
        and pair.ids == [*begun, *ended]
        and (not around.has_segments or pair.type_ids == segments)
    )


def _template(tokenizer: Tokenizer, around: SequenceFormat) -> TemplateProcessing:
    places = {"first": around.first, "between": around.between, "last": around.last}
    second = int(around.has_segments)
    single = ["first:0", "$A:0", "last:0"]
    pair = ["first:0", "$A:0", "between:0", f"$B:{second}", f"last:{second}"]
    # A place has a name of its own because tokens may hold colons, which separate the segment.
    return TemplateProcessing(
        single=[piece for piece in single if places.get(piece[:-2], True)],
        pair=[piece for piece in pair if places.get(piece[:-2], True)],
        special_tokens=[
            {"id": place, "ids": list(ids), "tokens": [tokenizer.id_to_token(number) for number in ids]}
            for place, ids in places.items()
            if ids
        ],
    )
