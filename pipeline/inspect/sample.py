"""One training sample as readable text: its documents, where they lie, and what the objective makes of it.

Original and corrupted text are aligned token by token. Where the network reads as many tokens as the text has, the
places show what was done; where noise changes the length, a longest common subsequence does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.storage import contents_of
from pipeline.inspect.lineage import find_documents
from pipeline.objectives.base import Batch
from pipeline.run.inputs import Inputs
from pipeline.samples.dataset import SampleOrigin, TokenDataset
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Slice

RELATIONS = {"nsp": ("next", "random"), "sop": ("in order", "swapped")}
"""By relation of a pair, the meanings of the labels 0 and 1."""
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Decoded text of an incomplete character."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of the text beside what the network reads there."""

    original: str
    read: str
    fate: str
    """`masked`, `random` or `kept`, which an encoder predicts; `deleted`, `inserted` or `replaced`; empty where the
    network reads the text as it is."""


@dataclass(frozen=True, slots=True)
class InspectedPiece:
    """A piece of a row that attends to itself: a slice of a document, a pair of segments, or the whole row."""

    slices: tuple[dict[str, Any], ...]
    """As `located` gives them."""
    original: str
    """The text as it is."""
    read: str
    """The text as the network reads it."""
    cells: tuple[Cell, ...]
    """Both side by side."""
    target: str
    """The prediction target as one text; the predicted tokens with gaps between them if they are a part of the text."""
    relation: str = ""
    """How the segments of a pair are related, as in RELATIONS."""

    def plain(self) -> str:
        """The text with what was done to it in brackets: `[masked:the]`, `[random:the→cat]`, `[deleted:the]`."""
        return "".join(_plain(cell) for cell in self.cells)

    def as_dict(self) -> dict[str, Any]:
        """The piece as JSON-like data."""
        return asdict(self) | {"text": self.plain(), "relation": self.relation or None}


def inspect_sample(inputs: Inputs, sample: int) -> list[InspectedPiece]:
    """Sample number `sample` of the last phase of training, exactly as the run of these inputs reads it.

    Raises:
        ReferenceNotFoundError: the number is negative.
    """
    if not 0 <= sample < 1 << 48:
        raise ReferenceNotFoundError(f"Samples are numbered from 0; there is no sample {sample}.")
    origin = inputs.train.origin(sample)
    documents = find_documents(inputs.train.stores, documents_of(origin))
    return SampleReader(inputs, inputs.train).read(sample, origin, documents)


def documents_of(origin: SampleOrigin) -> list[tuple[int, int]]:
    """The documents of a sample, each by the index of its store and its own."""
    return [(origin.store, one.document) for one in origin.slices]


def located(
    origin: SampleOrigin, part: Slice, documents: Mapping[tuple[int, int], dict[str, Any]]
) -> dict[str, Any]:
    """A slice of a sample: where its document is from, and `tokens`, the first and one past the last in it."""
    return documents[origin.store, part.document] | {"tokens": (part.start, part.stop)}


class SampleReader:
    """Turns samples of a phase into readable text."""

    def __init__(self, inputs: Inputs, dataset: TokenDataset) -> None:
        self._inputs, self._dataset = inputs, dataset
        with contents_of(inputs.stores[0].tokenizer_path):
            self._tokens = TokenTexts(inputs.vocabulary.tokenizer_json)

    def read(
        self, sample: int, origin: SampleOrigin, documents: Mapping[tuple[int, int], dict[str, Any]]
    ) -> list[InspectedPiece]:
        """The pieces of a sample; its noise does not depend on what else is in its micro-batch."""
        inputs, tokens = self._inputs, self._tokens
        packed = self._dataset.batch([sample])
        batch = inputs.corrupt(packed, Noise.of("train", inputs.config.seed))
        places = _places(packed, batch, self._dataset.special)
        relation = ""
        if packed.pair_labels is not None and (kind := inputs.config.reading.relation) is not None:
            relation = RELATIONS[kind][int(packed.pair_labels[0])]
        mask = inputs.vocabulary.roles.get("mask")
        return [
            InspectedPiece(
                slices=tuple(
                    located(origin, one, documents)
                    for one in origin.slices
                    if place.first <= one.row_start < place.first + len(place.ids)
                ),
                original=tokens.text(place.ids),
                read=tokens.text(place.read),
                cells=tuple(_cells(tokens, place, batch, mask)),
                target=_target(tokens, place, batch),
                relation=relation,
            )
            for place in places
        ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a piece."""

    first: int
    """Its first position in the row."""
    ids: np.ndarray
    """[tokens] its ids, without padding."""
    read: np.ndarray
    """[tokens that are read] the ids that the network, or its encoder, reads in its stead."""
    written: tuple[int, int]
    """First and one past the last position that may predict something about it."""


class TokenTexts:
    """Texts of tokens, with the spaces that belong to them."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer: Any = Tokenizer.from_str(tokenizer_json)
        self._prefix = getattr(self._tokenizer.model, "continuing_subword_prefix", None)
        added = self._tokenizer.get_added_tokens_decoder()
        # A special token that does not stand out by itself, such as a language tag, gets a space before it.
        self._added = {
            number: ("" if token.content.startswith(("<", "[")) else " ") + token.content
            for number, token in added.items()
        }

    def text(self, ids: Sequence[int] | np.ndarray) -> str:
        """Tokens that hold parts of a character are read together."""
        alone = ((int(number), self._one(int(number))) for number in ids)
        shown = []
        for is_part, group in groupby(alone, lambda token: _UNREADABLE in token[1]):
            numbers, texts = zip(*group, strict=True)
            shown += [self._tokenizer.decode(list(numbers), skip_special_tokens=False)] if is_part else texts
        return "".join(shown)

    def _one(self, number: int) -> str:
        if number in self._added:
            return self._added[number]
        token = self._tokenizer.id_to_token(number)
        if token is None:
            return f"<{number}>"
        if self._prefix:
            continues = token.startswith(self._prefix)
            return token.removeprefix(self._prefix) if continues else f" {token}"
        if token.startswith("▁"):
            return token.replace("▁", " ")
        return self._tokenizer.decode([number], skip_special_tokens=False)


def _places(packed: Packed, batch: Batch, special: tuple[int, int, int]) -> list[_Place]:
    """The pieces of a single row, without padding."""
    bos, eos, pad = special
    texts = _pieces_of(packed.cu_seqlens, packed.input_ids.reshape(-1), pad)
    if "decoder_input_ids" not in batch.inputs:
        read = batch.inputs.get("input_ids", packed.input_ids).reshape(-1)
        return [
            _Place(first, ids, read[first : first + len(ids)], (first, first + len(ids)))
            for first, ids in texts
        ]
    row, writes = batch.inputs["input_ids"].reshape(-1), batch.inputs["decoder_input_ids"].size
    sources = batch.inputs.get("cu_seqlens", np.asarray([0, len(row)]))
    targets = batch.inputs.get("decoder_cu_seqlens", np.asarray([0, writes])).tolist()
    read = _pieces_of(sources, row, pad)
    # A text that is too short to be corrupted is left out of the batch.
    is_left_out = [
        len(read) < len(texts) and int(((ids != bos) & (ids != eos)).sum()) < 2 for _, ids in texts
    ]
    kept = iter(zip((ids for _, ids in read), pairwise(targets), strict=False))
    nothing = row[:0], (0, 0)
    return [
        _Place(first, ids, *(nothing if left_out else next(kept)))
        for (first, ids), left_out in zip(texts, is_left_out, strict=True)
    ]


def _pieces_of(boundaries: np.ndarray, flat: np.ndarray, pad: int) -> list[tuple[int, np.ndarray]]:
    """(first position, ids) of every piece, without padding."""
    found = []
    for start, stop in zip(boundaries[:-1].tolist(), boundaries[1:].tolist(), strict=True):
        ids = flat[start:stop]
        size = int(np.flatnonzero(ids != pad).max(initial=-1)) + 1
        if size:
            found.append((start, ids[:size]))
    return found


def _cells(tokens: TokenTexts, place: _Place, batch: Batch, mask: int | None) -> Iterator[Cell]:
    if "decoder_input_ids" in batch.inputs:
        fates = {"equal": "", "delete": "deleted", "insert": "inserted", "replace": "replaced"}
        matcher = SequenceMatcher(None, place.ids.tolist(), place.read.tolist(), autojunk=False)
        for kind, start, stop, read_start, read_stop in matcher.get_opcodes():
            original, read = place.ids[start:stop], place.read[read_start:read_stop]
            yield Cell(tokens.text(original), tokens.text(read), fates[kind])
        return
    # A decoder predicts the text itself; only an encoder's predictions refer to input positions.
    predicted: set[int] = set()
    if "targets" in batch.inputs:
        positions = batch.inputs["predicted_positions"]
        inside = (positions >= place.first) & (positions < place.first + len(place.ids))
        if (batch.inputs["targets"][inside] == place.ids[positions[inside] - place.first]).all():
            predicted = set(positions.tolist())

    def fate(number: int) -> str:
        if place.first + number not in predicted:
            return ""
        true, seen = place.ids[number], place.read[number]
        return "masked" if seen == mask else "kept" if seen == true else "random"

    for name, group in groupby(range(len(place.ids)), fate):
        numbers = list(group)
        # Noise changes single tokens; the others are text.
        for own in [[number] for number in numbers] if name else [numbers]:
            yield Cell(tokens.text(place.ids[own]), tokens.text(place.read[own]), name)


def _target(tokens: TokenTexts, place: _Place, batch: Batch) -> str:
    if "targets" not in batch.inputs:
        return tokens.text(place.ids)
    start, stop = place.written
    positions, targets = batch.inputs["predicted_positions"], batch.inputs["targets"]
    inside = (positions >= start) & (positions < stop)
    positions, targets = positions[inside], targets[inside]
    runs = np.split(targets, np.flatnonzero(np.diff(positions) > 1) + 1)
    return " …".join(tokens.text(run) for run in runs)


def _plain(cell: Cell) -> str:
    if not cell.fate:
        return cell.original
    # The leading space belongs to the word, not to the bracket.
    word, read = cell.original.lstrip(" ") or cell.original, cell.read.strip() or cell.read
    space = cell.original[: len(cell.original) - len(word)]
    both = f"{word}→{read}"
    shown = {"random": both, "inserted": read, "replaced": both}.get(cell.fate, word)
    return f"{space}[{cell.fate}:{shown}]"
