"""Bulk encoding: which encoder does it, those of byte-level tokenizers, and the check that it equals the reference."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from data_prep.ragged import Ragged
from data_prep.tokenizers.reference import Encoder

if TYPE_CHECKING:
    import pyarrow as pa

CHECK_SLICES = 8
"""Slices of text compared with the reference per batch."""
CHECK_CHARACTERS = 512
"""Length of one slice."""
FORGET_BYTES = 32 << 20
"""Text after which the memory is looked at."""
FORGET_MEMORY_BYTES = 256 << 20
"""Growth of the process with which gigatoken is made anew: it remembers all words that it has seen, in as many bytes as
English has, and in ten times as many where all words are different."""
_FEW_BYTES = 1 << 15
"""Text that gigatoken encodes in the time that a call for a whole batch takes besides encoding."""

_NOTHING_ADDED = {"post_processor": None, "truncation": None, "padding": None}


class FastEncoder:
    """fastokens for byte-level tokenizers: the bytes of a token tell where it lies in the text."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str) -> None:
        import fastokens

        parts = orjson.loads(tokenizer_json)
        # What adds special tokens has no say here, and fastokens does not know every kind of it.
        bare = parts | _NOTHING_ADDED
        self._tokenizer = fastokens.Tokenizer.from_json_str(orjson.dumps(bare).decode())
        self._token_bytes = token_bytes(parts)

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        ids = self.ids(texts)
        return ids, _sentence_starts(ids, cuts, self._token_bytes)

    def ids(self, texts: pa.Array) -> Ragged:
        """The ids (uint32) of texts, an array of strings."""
        ids, offsets = self._tokenizer.encode_batch_flat(texts.to_pylist(), False, True)
        return Ragged(np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64))


class GigatokenEncoder:
    """gigatoken for byte-level tokenizers: several times faster than fastokens on words that it has seen.

    It has its own version of Unicode, and so other words where a character is newer than the version of Hugging Face
    tokenizers: texts with other characters than those of `settled_characters` are left to fastokens.
    """

    name = "gigatoken"

    def __init__(self, tokenizer_json: str) -> None:
        parts = orjson.loads(tokenizer_json)
        # Text that spells a special token becomes ordinary tokens.
        self._bare = orjson.dumps(parts | _NOTHING_ADDED | {"added_tokens": []})
        self._token_bytes = token_bytes(parts)
        self._others = FastEncoder(tokenizer_json)
        self._forget()
        self._num_bytes = 0
        """Of text since the memory was looked at."""
        self._first_memory_bytes = _memory_bytes()

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        from data_prep.tokenizers.lookup_kernel import find_others

        text = Ragged.of_strings(texts)
        if self._num_bytes > FORGET_BYTES:
            self._num_bytes = 0
            if _memory_bytes() - self._first_memory_bytes > FORGET_MEMORY_BYTES:
                self._forget()
        self._num_bytes += len(text.values)
        others = np.zeros(len(text), dtype=bool)
        find_others(text.values, text.offsets, settled_characters(), others)
        ids = self._encode_with_others(texts, others) if others.any() else self._encode(text)
        return ids, _sentence_starts(ids, cuts, self._token_bytes)

    def _encode_with_others(self, texts: pa.Array, others: np.ndarray) -> Ragged:
        """Ids of texts, those marked in `others` by fastokens."""
        ours = self._encode(Ragged.of_strings(texts.filter(~others)))
        return Ragged.merge(ours, self._others.ids(texts.filter(others)), others)

    def _encode(self, text: Ragged) -> Ragged:
        """Ids (uint32) of UTF-8 texts; of many, the library reads them where they lie."""
        from awkward import Array, contents, index

        if len(text.values) < _FEW_BYTES:
            return Ragged.of([self._tokenizer.encode(text[row].tobytes()) for row in range(len(text))])
        values: Any = text.values
        characters = contents.NumpyArray(values, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            index.Index64(text.offsets), characters, parameters={"__array__": "string"}
        )
        rows: Any = self._tokenizer.encode_batch(Array(strings), parallel=False).layout
        return Ragged(np.asarray(rows.content.data), np.asarray(rows.offsets))

    def _forget(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._tokenizer = load_hf_json(self._bare)


def _memory_bytes() -> int:
    """What this process has of the machine's memory."""
    import psutil

    return psutil.Process().memory_info().rss


@cache
def settled_characters() -> np.ndarray:
    """[65536] bool by code point: characters that are what they were in Unicode 3.2, and so in all versions since.

    Punctuation and symbols are one to tokenizers.
    """

    def kind(category: str) -> str:
        return "punctuation" if category[0] in "PS" else category

    def is_settled(character: str) -> bool:
        before = kind(unicodedata.ucd_3_2_0.category(character))
        return before == kind(unicodedata.category(character)) and before not in ("Cn", "Cs")

    return np.array([is_settled(chr(code)) for code in range(1 << 16)])


def _sentence_starts(ids: Ragged, cuts: Ragged, token_bytes: np.ndarray) -> Ragged:
    """First tokens of sentences, from where every token ends in the bytes of its text."""
    from data_prep.tokenizers.lookup_kernel import find_starts

    starts = np.empty(len(ids) + len(cuts.values), dtype=np.int32)
    offsets = np.empty(len(ids) + 1, dtype=np.int64)
    count = find_starts(ids.values, ids.offsets, token_bytes, cuts.values, cuts.offsets, starts, offsets)
    return Ragged(starts[:count], offsets)


def make_fast_encoder(tokenizer_json: str) -> Encoder | None:
    """The fast encoder that fits this tokenizer, or None where there is none to be relied on.

    gigatoken and fastokens read most, not all, tokenizers, and only byte-level ones spell every byte of the text.
    """
    from data_prep.tokenizers.word_cache import WordCacheEncoder, encodes_words_apart

    if encodes_words_apart(tokenizer_json):
        return WordCacheEncoder(tokenizer_json)
    if not is_byte_level(tokenizer_json):
        return None
    for make in (GigatokenEncoder, FastEncoder):
        with suppress(Exception):  # the libraries raise bare exceptions for what they do not know
            return make(tokenizer_json)
    return None


def is_byte_level(tokenizer_json: str) -> bool:
    """Whether the tokens of a text, joined, are the bytes of that text and nothing else."""
    parts = orjson.loads(tokenizer_json)
    pre_tokenizer = parts.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    keeps_bytes = all(
        (step.get("type") == "ByteLevel" and step.get("add_prefix_space") is False)
        or (step.get("type") == "Split" and step.get("behavior") != "Removed")
        for step in steps
    )
    return (
        parts.get("normalizer") is None
        and parts["model"].get("type") == "BPE"
        and not parts["model"].get("continuing_subword_prefix")
        and not parts["model"].get("end_of_word_suffix")
        and keeps_bytes
        and any(step.get("type") == "ByteLevel" for step in steps)
        and all(token["special"] for token in parts.get("added_tokens", ()))
    )


def token_bytes(parts: dict) -> np.ndarray:
    """[highest id + 1] int32: the bytes of text that each token of a byte-level tokenizer stands for.

    GPT-2's alphabet writes every byte as one character, so that a token has as many bytes as characters.
    """
    vocabulary = parts["model"]["vocab"]
    added = {token["content"]: token["id"] for token in parts.get("added_tokens", ())}
    sizes = np.zeros(max([*vocabulary.values(), *added.values()]) + 1, dtype=np.int32)
    for token, number in vocabulary.items():
        sizes[number] = len(token)
    return sizes


def agrees_with(encoder: Encoder, reference: Encoder, texts: pa.Array, cuts: Ragged) -> bool:
    """Whether two encoders give the same ids and sentence starts on slices spread over the texts."""
    slices, slice_cuts = _slices(texts, cuts)
    ours, theirs = encoder.encode(slices, slice_cuts), reference.encode(slices, slice_cuts)
    return all(mine.equals(true) for mine, true in zip(ours, theirs, strict=True))


def _slices(texts: pa.Array, cuts: Ragged) -> tuple[pa.Array, Ragged]:
    """Slices with their own cuts: at most CHECK_SLICES, from as many documents, each from another place."""
    import pyarrow as pa

    step = max(1, -(-len(texts) // CHECK_SLICES))
    slices, slice_cuts = [], []
    for number in range(0, len(texts), step):
        text = texts[number].as_py()
        spare = max(0, len(text) - CHECK_CHARACTERS)
        start = spare * (number // step) // CHECK_SLICES
        piece = text[start : start + CHECK_CHARACTERS]
        first, size = len(text[:start].encode("utf-8")), len(piece.encode("utf-8"))
        own = cuts[number] - first
        slices.append(piece)
        slice_cuts.append(own[(own > 0) & (own < size)])
    return pa.array(slices, pa.string()), Ragged.of(slice_cuts)
