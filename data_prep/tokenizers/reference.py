"""Encoding with Hugging Face tokenizers: slow, works for every `tokenizer.json`, and is always right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import regex

from cluster.artefacts.errors import ConfigError
from data_prep.ragged import Ragged, offsets_of
from data_prep.tokenizers.special import KNOWN_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    from tokenizers import Tokenizer


class Encoder(Protocol):
    """Turns documents into ids and sentence starts."""

    name: str
    """Name of the encoder in the manifest's statistics."""

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        """Encode whole documents, without adding special tokens.

        Text that spells a special token, such as `<s>`, becomes ordinary tokens: what a corpus says can never
        pose as the system's own marks.

        Args:
            texts: [documents] string, whole documents.
            cuts: per document the UTF-8 byte offsets of its sentences but the first; see
                `sentences.py`.

        Returns:
            Per document uint32 ids, and int32 first token of each sentence: the first token that reaches beyond
            the cut. A document without tokens has no sentences; sentences that share a token become one.
        """
        ...


class ReferenceEncoder:
    """The reference that all other encoders must equal."""

    name = "tokenizers"

    def __init__(self, tokenizer_json: str) -> None:
        """Read a tokenizer.

        Raises:
            ConfigError: text that spells a special token cannot be kept from becoming it.
        """
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.tokenizer.encode_special_tokens = True
        _keep_control_ids_from_text(self.tokenizer)

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        strings = texts.to_pylist()
        encodings = self.tokenizer.encode_batch(strings, add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        starts = [
            _sentence_starts(encoding.offsets, text, cuts[number])
            for number, (encoding, text) in enumerate(zip(encodings, strings, strict=True))
        ]
        return Ragged.of(ids), Ragged.of(starts)


def control_names(tokenizer: Tokenizer) -> list[str]:
    """Names of all entries that no text may become: special tokens, and the bytes of a `byte_fallback`."""
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    by_role = [name for name in KNOWN_NAMES if tokenizer.token_to_id(name) is not None]
    falls_back = getattr(tokenizer.model, "byte_fallback", False)
    spelled = [name for byte in range(256) if tokenizer.token_to_id(name := f"<0x{byte:02X}>") is not None]
    return list(dict.fromkeys([*special, *by_role, *(spelled if falls_back else ())]))


def _keep_control_ids_from_text(tokenizer: Tokenizer) -> None:
    """Cut names of control entries in two before the model sees them, where it would make these entries of them.

    That is so where the model's own vocabulary holds them: a unigram model or a word level takes any entry that the
    text spells, and BPE may have merges for it.
    """
    from tokenizers import Regex, pre_tokenizers

    names = control_names(tokenizer)
    if not any(_becomes_control(tokenizer, name) for name in names):
        return
    bare = (name.strip("▁ ") for name in names)
    quote = partial(regex.escape, special_only=False)
    pattern = "|".join(f"{quote(name[:1])}(?={quote(name[1:])})" for name in bare if len(name) > 1)
    steps = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer is not None else []
    cut = pre_tokenizers.Split(Regex(pattern or r"(?!)"), "merged_with_previous")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, cut])  # pyright: ignore[reportAttributeAccessIssue]
    if left := [name for name in names if _becomes_control(tokenizer, name)]:
        raise ConfigError(
            f"Text that spells {left[0]!r} would become that special token of the tokenizer.",
            next_step="use a tokenizer whose special tokens have names of two characters or more, without spaces",
        )


def _becomes_control(tokenizer: Tokenizer, name: str) -> bool:
    """Whether a text that holds the name gets its id as one token; the unknown token replaces any letters."""
    number, model = tokenizer.token_to_id(name), tokenizer.model
    if name == getattr(model, "unk_token", None) or number == getattr(model, "unk_id", None):
        return False
    encodings = tokenizer.encode_batch([name, f"a{name}b", f"a {name} b"], add_special_tokens=False)
    found = (
        each == number and end - start >= min(2, len(name))
        for encoding in encodings
        for each, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
    )
    return any(found)


def _sentence_starts(offsets: Sequence[tuple[int, int]], text: str, cuts: np.ndarray) -> np.ndarray:
    """The first token that reaches beyond each cut; sentences that share a token become one.

    Args:
        offsets: [tokens] first and last (exclusive) character of each.
        cuts: bytes of the text's UTF-8, on boundaries of characters.
    """
    if not offsets:
        return np.empty(0, dtype=np.int32)
    if not text.isascii() and len(cuts):
        continuation = (np.frombuffer(text.encode("utf-8"), dtype=np.uint8) & 0xC0) == 0x80
        cuts = cuts - offsets_of(continuation)[cuts]
    ends = np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64))
    starts = np.searchsorted(ends, cuts, side="right")
    return np.unique(np.concatenate([[0], starts[starts < len(ends)]])).astype(np.int32)


def first_tokens(ids: Ragged, found: np.ndarray) -> Ragged:
    """Sentence starts (int32) of documents from where sentences were found to start in all ids, end to end."""
    filled = np.flatnonzero(ids.lengths)
    # Whatever starts after the tokens of its document is the first token of a later one, or there is none.
    tokens = np.unique(np.concatenate([ids.offsets[filled], found[found < len(ids.values)]]))
    rows = np.searchsorted(ids.offsets, tokens, side="right") - 1
    counts = np.bincount(rows, minlength=len(ids))
    return Ragged((tokens - ids.offsets[rows]).astype(np.int32), offsets_of(counts))
