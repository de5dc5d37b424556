"""The part that all objectives of encoder-decoders share: from pairs of source and target texts to a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.objectives.base import Batch, Objective, OutsideModels, Term

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.language_models import SequenceToSequence

WIDENING = 64
"""A batch grows by so many columns when its pieces need more than its usual width."""


class TextPairs(NamedTuple):
    """The texts that the encoder reads and the decoder writes, piece after piece."""

    sources: np.ndarray
    """[source tokens] uint32 ids of all pieces, one after the other."""
    targets: np.ndarray
    """[target tokens] uint32 ids of all pieces, one after the other."""
    source_lengths: np.ndarray
    """[pieces] int64, at least 1."""
    target_lengths: np.ndarray
    """[pieces] int64, at least 1."""
    rows: np.ndarray
    """[pieces] int64 row of the batch that each piece goes to, ascending."""
    origins: np.ndarray
    """[target tokens] int64 ascending: the position in the flattened input rows that each target comes from; a target
    that was not there has the position of a neighbour. Empty unless asked for."""


@compiled_loop
def empty_pairs(num_sources: int, num_targets: int, pieces: int, with_origins: bool) -> TextPairs:
    """Memory for the pairs of so many pieces, with so many tokens in all of their texts."""
    return TextPairs(
        np.empty(num_sources, dtype=np.uint32),
        np.empty(num_targets, dtype=np.uint32),
        np.empty(pieces, dtype=np.int64),
        np.empty(pieces, dtype=np.int64),
        np.empty(pieces, dtype=np.int64),
        np.empty(num_targets if with_origins else 0, dtype=np.int64),
    )


@compiled_loop
def first_pairs(pairs: TextPairs, pieces: int, num_sources: int, num_targets: int) -> TextPairs:
    """The first pieces, with so many tokens in all of their texts."""
    return TextPairs(
        pairs.sources[:num_sources],
        pairs.targets[:num_targets],
        pairs.source_lengths[:pieces],
        pairs.target_lengths[:pieces],
        pairs.rows[:pieces],
        pairs.origins[:num_targets],
    )


class Denoising(Objective):
    """An objective of encoder-decoders: the decoder writes what the encoder reads corrupted."""

    NETWORKS = ("encoder_decoder",)

    def terms(self) -> Mapping[str, Term]:
        """One term."""
        return {"denoise": Term(is_likelihood=True)}

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> SequenceToSequence:
        """An encoder-decoder with its vocabulary projection."""
        from models.language_models import SequenceToSequence

        return SequenceToSequence(config)


def assemble_rows(
    pairs: TextPairs, batch: int, widths: tuple[int, int], pad: int, decoder_starts: np.ndarray | int
) -> Batch:
    """Put pairs side by side into the rows of an encoder and of a decoder, and pad the rows.

    Piece i of the decoder belongs to piece i of the encoder. The padding that ends a row is a piece of its own in
    both; it has no tokens in the decoder when that row is full. Where only the encoder's row is full, the decoder's
    padding stays with the last piece, which never attends to it: it comes last, and attention is causal.

    Args:
        batch: rows.
        widths: columns of the encoder and of the decoder. Where pieces need more, both rows and batch get wider by
            multiples of `WIDENING`; the pieces that their padding is cut into have the usual width at most.
        decoder_starts: the decoder's first input, for all pieces or [pieces] int64. The targets follow,
            shifted by one.
    """
    rows = pairs.rows
    source_used = np.bincount(rows, weights=pairs.source_lengths, minlength=batch).astype(np.int64)
    target_used = np.bincount(rows, weights=pairs.target_lengths, minlength=batch).astype(np.int64)
    source_width, target_width = _width(widths[0], source_used), _width(widths[1], target_used)
    cuts = 1
    if source_width > widths[0] or target_width > widths[1]:
        source_width, cuts = _cut_padding(int(source_used.max()), source_width, target_width, widths)
    source_ends = _ends(pairs.source_lengths, rows, source_used, source_width)
    target_ends = _ends(pairs.target_lengths, rows, target_used, target_width)
    input_ids = np.empty((batch, source_width), dtype=np.int64)
    _write(pairs.sources, pairs.source_lengths, source_ends, pad, input_ids.reshape(-1))
    decoder_input_ids = np.empty((batch, target_width), dtype=np.int64)
    starts = np.broadcast_to(decoder_starts, len(rows)).astype(np.int64)
    positions, targets = _write_shifted(
        pairs.targets, pairs.target_lengths, target_ends, starts, pad, decoder_input_ids.reshape(-1)
    )

    is_padded = source_used < source_width
    padded_rows = np.flatnonzero(is_padded)
    is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    stretched = is_last & ~is_padded[rows]
    target_ends = np.where(stretched, (rows + 1) * target_width, target_ends)
    boundaries = _cu_seqlens(source_ends, _padding_ends(padded_rows, source_used, source_width, cuts))
    decoder_boundaries = _cu_seqlens(target_ends, _padding_ends(padded_rows, target_used, target_width, cuts))
    alone = len(boundaries) == batch + 1
    return Batch(
        inputs={
            "input_ids": input_ids,
            "decoder_input_ids": decoder_input_ids,
            "predicted_positions": positions,
            "targets": targets,
            **({} if alone else {"cu_seqlens": boundaries, "decoder_cu_seqlens": decoder_boundaries}),
        },
        counts={"denoise": len(targets)},
    )


def _width(usual: int, used: np.ndarray) -> int:
    """The usual width, or the next multiple of `WIDENING` above it that holds every row."""
    return usual + max(0, -(-(int(used.max()) - usual) // WIDENING)) * WIDENING


def _ends(lengths: np.ndarray, rows: np.ndarray, used: np.ndarray, width: int) -> np.ndarray:
    """[pieces] int64 where every piece ends in the flattened batch; `used` are the tokens of each row."""
    padding_before = rows * width - (np.cumsum(used) - used)[rows]
    return np.cumsum(lengths) + padding_before


@compiled_loop
def _write(ids: np.ndarray, lengths: np.ndarray, ends: np.ndarray, pad: int, out: np.ndarray) -> None:
    """Put the pieces where they end, and padding everywhere else."""
    read, stop = 0, 0
    for piece in range(len(lengths)):
        start = ends[piece] - lengths[piece]
        out[stop:start] = pad
        stop = ends[piece]
        for place in range(start, stop):
            out[place] = ids[read]
            read += 1
    out[stop:] = pad


@compiled_loop
def _write_shifted(
    ids: np.ndarray, lengths: np.ndarray, ends: np.ndarray, starts: np.ndarray, pad: int, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Put each piece's start and its ids but the last where the piece ends, and padding everywhere else.

    Returns the places, and the ids that are to be predicted there: [ids] int64 each.
    """
    positions, targets = np.empty(len(ids), dtype=np.int64), np.empty(len(ids), dtype=np.int64)
    read, stop = 0, 0
    for piece in range(len(lengths)):
        start = ends[piece] - lengths[piece]
        out[stop:start] = pad
        stop = ends[piece]
        previous = starts[piece]
        for place in range(start, stop):
            out[place] = previous
            previous = np.int64(ids[read])
            positions[read], targets[read] = place, previous
            read += 1
    out[stop:] = pad
    return positions, targets


def _cut_padding(
    source_used: int, source_width: int, target_width: int, widths: tuple[int, int]
) -> tuple[int, int]:
    """The encoder's width, and into how many pieces the padding of each row is cut, where rows are wider than usual.

    No piece may be longer than the usual row, which networks may know no positions beyond; and no padding of the
    decoder may be without any of the encoder's, or it would have nothing to attend to. `source_used` counts the tokens
    of the fullest row.
    """

    def cuts() -> int:
        return max(-(-source_width // widths[0]), -(-target_width // widths[1]))

    while source_width - source_used < cuts():
        source_width += WIDENING
    return source_width, cuts()


def _padding_ends(rows: np.ndarray, used: np.ndarray, width: int, cuts: int) -> np.ndarray:
    """[rows * cuts] int64 where the pieces of each row's padding end, all about as long."""
    padding = (width - used[rows])[:, None]
    return (rows[:, None] * width + used[rows][:, None] + padding * np.arange(1, cuts + 1) // cuts).reshape(
        -1
    )


def _cu_seqlens(ends: np.ndarray, padding_ends: np.ndarray) -> np.ndarray:
    """int32 boundaries; an empty padding piece repeats the one before it."""
    return np.concatenate(([0], np.sort(np.concatenate((ends, padding_ends))))).astype(np.int32)
