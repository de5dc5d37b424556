"""Bulk encoding with tokie: many times faster than Hugging Face tokenizers, and used where it gives the same ids.

tokie has its own tables of Unicode. Every character is therefore tried, when a text first has it, in a few short texts;
the reference encodes texts with a character that the two treat differently, and texts that spell a special token.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import regex

from data_prep.ragged import Ragged, offsets_of
from data_prep.tokenizers.reference import Encoder, ReferenceEncoder, control_names, first_tokens
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHECK_SLICES = 8
"""Slices of text compared with the reference per batch."""
CHECK_CHARACTERS = 512
"""Length of one slice."""
SPACE = "▁"
"""SentencePiece's mark for a space."""
_SPACES = "".join(character for number in range(0x3001) if (character := chr(number)).isspace())
_TRIED, _DIFFERS = 1, 2
_CONTEXTS = ("{}", "a{}", "{}a", "x {}'re 1{}2 {} y", "  {}", "a  {}  {}{}")
"""Texts that try a character: where tokens begin and end, and beside letters, digits and spaces."""
_PROBE = "The naïve café, 12½ €: “quoted”… it's 3.5 km.\tTabs  and   spaces. Straße 日本語。한국어 नमस्ते <s> [MASK] 👍"
_LOCAL = frozenset(
    {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled"}
)
"""Normalizers that never look across white space."""
_COLLAPSED = [
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\A "}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": rf"[ {SPACE}]+\z"}, "content": ""},
    {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    {"type": "Prepend", "prepend": SPACE},
]
"""How `sentencepiece.py` writes that every word begins with one mark, whatever white space is around it."""


class FastEncoder:
    """Encodes with tokie, and with the reference what tokie encodes otherwise."""

    name = "tokie"

    def __init__(self, tokenizer_json: str, reference: ReferenceEncoder) -> None:
        """Read a tokenizer that is byte-level or encodes words apart.

        Raises:
            Exception: tokie does not read it.
        """
        import tokie

        parts = orjson.loads(tokenizer_json)
        bare = parts | {"post_processor": None, "truncation": None, "padding": None, "added_tokens": []}
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(orjson.dumps(bare))
            file.flush()
            self._tokenizer: Any = tokie.Tokenizer.from_json(file.name)
        self._reference = reference
        self._token_bytes = token_bytes(parts) if is_byte_level(tokenizer_json) else None
        names = control_names(reference.tokenizer)
        left_out = "|".join(map(regex.escape, names))
        if self._token_bytes is None:
            # Graphemes with white space, which Hugging Face tokenizers looks up as one.
            left_out = rf"(?:\A|\s)\p{{M}}|\r\n|{left_out}"
        self._left_out = regex.compile(left_out or r"(?!)", regex.IGNORECASE)
        # White space, for the tokenizer.
        separates = {}
        for space in _SPACES:
            texts = [f"a{space}b", "a b", space]
            found, expected, alone = reference.tokenizer.encode_batch(texts, add_special_tokens=False)
            separates[space] = found.ids == expected.ids and not alone.ids
        self._blank = "".join(filter(separates.__getitem__, _SPACES))
        self._characters = np.zeros(0x110000, dtype=np.uint8)
        marks_words = _steps(parts, "normalizer", "normalizers")[-len(_COLLAPSED) :] == _COLLAPSED
        self._lone_mark = reference.tokenizer.token_to_id(SPACE) if marks_words else None
        ascii_points = np.arange(0x80)
        self._try(ascii_points)
        self._ascii_differs = ascii_points[self._characters[:0x80] == _DIFFERS].astype(np.uint8)

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        if not len(texts):
            return self._reference.encode(texts, cuts)
        strings = texts.to_pylist()
        text = Ragged.of_strings(texts)
        odd = self._odd(text, strings)
        if self._token_bytes is None:
            # Every cut must lie beside white space of ASCII.
            blank = np.array([ord(space) for space in self._blank if space.isascii()], dtype=np.uint8)
            places = text.offsets[cuts.row_of] + cuts.values
            is_apart = np.isin(text.values[places - 1], blank) | np.isin(text.values[places], blank)
            odd |= np.bincount(cuts.row_of[~is_apart], minlength=len(text)) > 0
        ours, theirs = np.flatnonzero(~odd), np.flatnonzero(odd)
        encode = self._words if self._token_bytes is None else self._bytes
        found = encode([strings[row] for row in ours], cuts.take(ours))
        if not len(theirs):
            return found
        others = self._reference.encode(
            pa.array([strings[row] for row in theirs], pa.string()), cuts.take(theirs)
        )
        ids, starts = (Ragged.merge(*both, odd) for both in zip(found, others, strict=True))
        return ids, starts

    def _bytes(self, strings: list[str], cuts: Ragged) -> tuple[Ragged, Ragged]:
        """Encode whole texts; the bytes of the tokens, joined, are the text's, and mark where sentences start."""
        assert self._token_bytes is not None
        ids = self._ids(strings)
        bounds = offsets_of(self._token_bytes[ids.values])
        # Cuts in the bytes of all texts.
        places = cuts.values + bounds[ids.offsets[:-1]][cuts.row_of]
        return ids, first_tokens(ids, np.searchsorted(bounds[1:], places, side="right"))

    def _words(self, strings: list[str], cuts: Ragged) -> tuple[Ragged, Ragged]:
        """Encode sentence by sentence: no token lies across white space."""
        pieces: list[str] = []
        for row, text in enumerate(strings):
            data = text.encode("utf-8")
            bounds = [0, *cuts[row].tolist(), len(data)]
            pieces += (data[first:last].decode("utf-8") for first, last in pairwise(bounds))
        ids = self._ids([piece.strip(self._blank) for piece in pieces])
        rows = offsets_of(cuts.lengths + 1)
        starts = ids.offsets[:-1].copy()
        if self._lone_mark is not None:
            # A mark by itself is the white space before the sentence, and ends where the sentence begins.
            is_later = np.array([piece[:1] not in self._blank for piece in pieces], dtype=bool) & (
                ids.lengths > 0
            )
            is_later &= starts > np.repeat(ids.offsets[rows[:-1]], np.diff(rows))
            starts[is_later] += ids.values[starts[is_later]] == self._lone_mark
        whole = Ragged(ids.values, ids.offsets[rows])
        return whole, first_tokens(whole, starts)

    def _ids(self, strings: list[str]) -> Ragged:
        ids, lengths = self._tokenizer.encode_batch_flat(strings, add_special_tokens=False)
        return Ragged(ids, offsets_of(lengths))

    def _odd(self, texts: Ragged, strings: list[str]) -> np.ndarray:
        """[texts] bool: texts that tokie may encode otherwise than the reference.

        Args:
            texts: the UTF-8 bytes of `strings`.
        """
        data = texts.values
        # Bytes beyond ASCII are whole characters, whose first bytes are all but 0x80 to 0xBF.
        beyond = np.flatnonzero(data >= 0x80)
        points = np.frombuffer(data[beyond].tobytes().decode("utf-8").encode("utf-32-le"), dtype="<u4")
        if len(new := points[self._characters[points] == 0]):
            self._try(np.unique(new))
        places = beyond[(data[beyond] & 0xC0) != 0x80][self._characters[points] == _DIFFERS]
        if len(self._ascii_differs):
            places = np.append(places, np.flatnonzero(np.isin(data, self._ascii_differs)))
        odd = np.zeros(len(texts), dtype=bool)
        odd[np.searchsorted(texts.offsets, places, side="right") - 1] = True
        return odd | np.array([bool(self._left_out.search(text)) for text in strings], dtype=bool)

    def _try(self, points: np.ndarray) -> None:
        """Find out whether tokie encodes new characters as the reference does."""
        texts = [context.replace("{}", chr(point)) for point in points.tolist() for context in _CONTEXTS]
        if self._token_bytes is None:
            texts = [text.strip(self._blank) for text in texts]
        ids, encodings = (
            self._ids(texts),
            self._reference.tokenizer.encode_batch_fast(texts, add_special_tokens=False),
        )
        equal = [np.array_equal(ids[row], encoding.ids) for row, encoding in enumerate(encodings)]
        all_equal = np.array(equal, dtype=bool).reshape(len(points), len(_CONTEXTS)).all(axis=1)
        self._characters[points] = np.where(all_equal, _TRIED, _DIFFERS)


def make_fast_encoder(tokenizer_json: str) -> Encoder | None:
    """Return tokie's encoder, or None if its ids differ or sentence starts cannot be found."""
    if not (is_byte_level(tokenizer_json) or encodes_words_apart(tokenizer_json)):
        return None
    reference = ReferenceEncoder(tokenizer_json)
    try:
        encoder = FastEncoder(tokenizer_json, reference)
        none = Ragged.of([np.empty(0, dtype=np.int64)])
        return encoder if agrees_with(encoder, reference, pa.array([_PROBE]), none) else None
    except Exception:  # tokie raises bare exceptions for what it does not read
        return None


def is_byte_level(tokenizer_json: str) -> bool:
    """Whether the tokens of a text, joined, are the bytes of that text and nothing else."""
    parts = orjson.loads(tokenizer_json)
    keeps_bytes = all(
        (step.get("type") == "ByteLevel" and step.get("add_prefix_space") is False)
        or (step.get("type") == "Split" and step.get("behavior") != "Removed")
        for step in _steps(parts, "pre_tokenizer", "pretokenizers")
    )
    return (
        parts.get("normalizer") is None
        and parts["model"].get("type") == "BPE"
        and not parts["model"].get("continuing_subword_prefix")
        and not parts["model"].get("end_of_word_suffix")
        and keeps_bytes
        and any(step.get("type") == "ByteLevel" for step in _steps(parts, "pre_tokenizer", "pretokenizers"))
        and all(token["special"] for token in parts.get("added_tokens", ()))
    )


def encodes_words_apart(tokenizer_json: str) -> bool:
    """Whether a WordPiece or unigram model gives a text the ids of its words between white space, joined."""
    parts = orjson.loads(tokenizer_json)
    normalizers = _steps(parts, "normalizer", "normalizers")
    first, *later = _steps(parts, "pre_tokenizer", "pretokenizers") or [{"type": None}]
    marks_words = normalizers[-len(_COLLAPSED) :] == _COLLAPSED
    local = normalizers[: -len(_COLLAPSED)] if marks_words else normalizers
    if (
        parts["model"].get("type") not in ("WordPiece", "Unigram")
        or not all(step["type"] in _LOCAL for step in local)
        or not all(token["special"] for token in parts.get("added_tokens", ()))
    ):
        return False
    if marks_words:
        mark = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": True}
        return first == mark and all(step["type"] == "Split" for step in later)
    return first["type"] in ("BertPreTokenizer", "WhitespaceSplit") and all(
        step["type"] in ("Punctuation", "Split")
        or (step["type"] == "Metaspace" and step["prepend_scheme"] == "always")
        for step in later
    )


def _steps(parts: dict[str, Any], name: str, members: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which is one or a sequence of them."""
    found = parts.get(name) or {}
    return found.get(members, [found] if found else [])


def token_bytes(parts: dict[str, Any]) -> np.ndarray:
    """[highest id + 1] int32: bytes of text of each token of a byte-level tokenizer.

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


def round_trips(tokenizer: Tokenizer, texts: pa.Array, cuts: Ragged) -> tuple[int, int]:
    """Lines of the slices that `agrees_with` compares, and how many of them decoding gives back but for white space."""
    lines = [
        line
        for text in _slices(texts, cuts)[0].to_pylist()
        for part in text.split("\n")
        if (line := part.strip())
    ]
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
    decoded = tokenizer.decode_batch(ids, skip_special_tokens=False)
    exact = sum("".join(a.split()) == "".join(b.split()) for a, b in zip(decoded, lines, strict=True))
    return len(lines), exact


def _slices(texts: pa.Array, cuts: Ragged) -> tuple[pa.Array, Ragged]:
    """Slices with their own cuts: at most CHECK_SLICES, from as many documents, each from another place."""
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


def fit(tokenizer_json: str, lines: Sequence[str]) -> dict[str, int | float | str]:
    """Measure a tokenizer on lines of text; at least one must not be empty.

    Returns:
        `vocab_size`; `tokens`; `bytes_per_token` (UTF-8 bytes: the higher, the shorter the sequences); `fertility`
        (tokens for each word, words being what white space separates: Rust et al. 2021, section 4.2); `unknown_rate`
        (share of the tokens that are the unknown token); `exact_round_trips` (share of the lines that decoding gives
        back, character by character); `encoder` (for bulk work: `tokenizers`, or a faster library that gives the same
        ids on these lines); `encode_mb_per_s` (megabytes of text; the best of three).
    """
    cuts = Ragged.of([np.empty(0, dtype=np.int64)] * len(lines))
    texts = pa.array(lines, pa.string())
    reference, fast = ReferenceEncoder(tokenizer_json), make_fast_encoder(tokenizer_json)
    tokenizer = reference.tokenizer
    is_fast = fast is not None and agrees_with(fast, reference, texts, cuts)
    encoder: Encoder = fast if fast is not None and is_fast else reference
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ids, _ = encoder.encode(texts, cuts)
        seconds.append(time.perf_counter() - started)
    num_bytes = sum(len(line.encode("utf-8")) for line in lines)
    num_tokens = max(1, len(ids.values))
    decoded = tokenizer.decode_batch(
        [ids[number].tolist() for number in range(len(ids))], skip_special_tokens=False
    )
    unknown = find_special_tokens(tokenizer).get("unk", -1)
    return {
        "vocab_size": vocabulary_size(tokenizer),
        "tokens": len(ids.values),
        "bytes_per_token": num_bytes / num_tokens,
        "fertility": len(ids.values) / max(1, sum(len(line.split()) for line in lines)),
        "unknown_rate": int((ids.values == unknown).sum()) / num_tokens,
        "exact_round_trips": sum(a == b for a, b in zip(decoded, lines, strict=True)) / max(1, len(lines)),
        "encoder": encoder.name,
        "encode_mb_per_s": num_bytes / 1e6 / min(seconds),
    }
