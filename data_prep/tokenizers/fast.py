"""Bulk encoding with fastokens, sentence by sentence, and the check that it equals the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from data_prep.sentences import split_at
from data_prep.tokenizers.reference import Encoder

CHECK_SLICES = 16
"""Slices of text compared with the reference per batch."""
CHECK_CHARACTERS = 2048
"""Length of one slice."""


class FastEncoder:
    """fastokens on the sentences of documents; their ids joined are those of the documents."""

    name = "fastokens"
    batch_characters = 4 << 20

    def __init__(self, tokenizer_json: str) -> None:
        import fastokens

        # What adds special tokens has no say here, and fastokens does not know every kind of it.
        bare = orjson.loads(tokenizer_json) | {"post_processor": None, "truncation": None, "padding": None}
        self._tokenizer = fastokens.Tokenizer.from_json_str(orjson.dumps(bare).decode())

    def encode(self, texts: Sequence[str], cuts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        pieces = [split_at(text, own) for text, own in zip(texts, cuts, strict=True)]
        flat = [piece for own in pieces for piece in own]
        raw_ids, raw_offsets = self._tokenizer.encode_batch_flat(flat, False, True)
        ids = np.frombuffer(raw_ids, dtype="<u4")
        offsets = np.frombuffer(raw_offsets, dtype="<u8").astype(np.int64)
        bounds = np.cumsum([0, *(len(own) for own in pieces)])
        encoded = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            start, end = offsets[first], offsets[last]
            # A piece without tokens is possible with tokenizers that drop white space.
            starts = offsets[first:last][offsets[first:last] < offsets[first + 1 : last + 1]]
            encoded.append((ids[start:end], (starts - start).astype(np.int32)))
        return encoded


def make_fast_encoder(tokenizer_json: str, sentences: str) -> FastEncoder | None:
    """The fast encoder, or None where it cannot be relied on for this tokenizer.

    Cutting at sentences is proven harmless for the GPT-2 pre-tokenizer only, and fastokens reads most, not
    all, tokenizers.
    """
    if sentences != "none" and not splits_like_gpt2(tokenizer_json):
        return None
    try:
        return FastEncoder(tokenizer_json)
    except Exception:  # the library raises bare exceptions for what it does not know
        return None


def splits_like_gpt2(tokenizer_json: str) -> bool:
    """Whether text is split by GPT-2's byte-level pattern and by nothing else before BPE."""
    parts = orjson.loads(tokenizer_json)
    pre_tokenizer = parts.get("pre_tokenizer") or {}
    return (
        parts.get("normalizer") is None
        and parts["model"].get("type") == "BPE"
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("add_prefix_space") is False
        and pre_tokenizer.get("use_regex", True)
        and all(token["special"] for token in parts.get("added_tokens", ()))
    )


def agrees_with(
    encoder: Encoder, reference: Encoder, texts: Sequence[str], cuts: Sequence[np.ndarray]
) -> bool:
    """Whether two encoders give the same ids and sentence starts on slices spread over the texts."""
    slices, slice_cuts = _slices(texts, cuts)
    ours = encoder.encode(slices, slice_cuts)
    theirs = reference.encode(slices, slice_cuts)
    return all(
        np.array_equal(ids, true_ids) and np.array_equal(starts, true_starts)
        for (ids, starts), (true_ids, true_starts) in zip(ours, theirs, strict=True)
    )


def _slices(texts: Sequence[str], cuts: Sequence[np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
    """Slices with their own cuts: at most CHECK_SLICES, from as many documents, each from another place.

    A cut on a slice's last character is dropped: white space at the end of a text is one token, cut or not.
    """
    step = -(-len(texts) // CHECK_SLICES)
    slices, slice_cuts = [], []
    for number in range(0, len(texts), step):
        text, own = texts[number], cuts[number]
        spare = max(0, len(text) - CHECK_CHARACTERS)
        start = spare * (number // step) // CHECK_SLICES
        end = start + CHECK_CHARACTERS
        slices.append(text[start:end])
        slice_cuts.append(own[(own > start) & (own < min(end, len(text)) - 1)] - start)
    return slices, slice_cuts
