"""Whole batches through the noises of `text_noise.py`: from packed pieces to pairs of source and target texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.objectives.kernels.text_noise import TextNoise, add_text_noise
from pipeline.samples.noise.kernels import fold


class Frame(NamedTuple):
    """The special tokens around a text."""

    bos: int
    eos: int
    pad: int
    keep_bos: bool
    """Whether `<s>` stays before the text."""


@compiled_loop
def denoising_pairs(
    input_ids: np.ndarray,
    cu_seqlens: np.ndarray,
    sentence_starts: np.ndarray,
    states: np.ndarray,
    noise: TextNoise,
    frame: Frame,
    tags: np.ndarray,
    with_origins: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The fields of `TextPairs`: every piece that is not padding, corrupted and as it was.

    Args:
        input_ids: [batch, length] uint32.
        cu_seqlens: [pieces + 1] int32.
        sentence_starts: [sentences] int32.
        states: [batch] uint64 noise of each row. A piece's noise also depends on its column.
        tags: [batch] int64 id that ends each row's texts, on both sides; -1 for none.
        with_origins: fill in `TextPairs.origins`.
    """
    batch, length = input_ids.shape
    flat = input_ids.reshape(-1)
    pieces = len(cu_seqlens) - 1
    sources = np.empty(batch * length + pieces, dtype=np.uint32)
    targets = np.empty(batch * length + pieces, dtype=np.uint32)
    source_lengths = np.empty(pieces, dtype=np.int64)
    target_lengths = np.empty(pieces, dtype=np.int64)
    rows = np.empty(pieces, dtype=np.int64)
    origins = np.empty(len(targets) if with_origins else 0, dtype=np.int64)
    found, read, written, sentence = 0, 0, 0, 0
    for piece in range(pieces):
        start, stop = int(cu_seqlens[piece]), int(cu_seqlens[piece + 1])
        row, column = int(start // length), int(start % length)
        while stop > start and flat[stop - 1] == frame.pad:
            stop -= 1
        if stop == start:
            continue
        begin = start + 1 if flat[start] == frame.bos else start
        end = stop - 1 if stop > begin and flat[stop - 1] == frame.eos else stop
        while sentence < len(sentence_starts) and sentence_starts[sentence] < begin:
            sentence += 1
        first_sentence = sentence
        while sentence < len(sentence_starts) and sentence_starts[sentence] < end:
            sentence += 1
        text = flat[begin:end]
        sentences = sentence_starts[first_sentence:sentence].astype(np.int64) - begin
        corrupted = add_text_noise(text, sentences, noise, fold(states[row], np.uint64(column)))
        opened, closed = begin > start and frame.keep_bos, stop > end
        source_lengths[found] = _framed(corrupted, opened, closed, tags[row], frame, sources[read:])
        target_lengths[found] = _framed(text, opened, closed, tags[row], frame, targets[written:])
        rows[found] = row
        if with_origins:
            own = origins[written : written + target_lengths[found]]
            own[:] = np.arange(len(own)) + (start if opened else begin)
            if tags[row] >= 0:
                # The tag is no token of the row; it counts as the last token of the document that it ends.
                own[-1] = stop - 1
        read += source_lengths[found]
        written += target_lengths[found]
        found += 1
    return (
        sources[:read],
        targets[:written],
        source_lengths[:found],
        target_lengths[:found],
        rows[:found],
        origins[:written],
    )


@compiled_loop
def _framed(text: np.ndarray, opened: bool, closed: bool, tag: int, frame: Frame, out: np.ndarray) -> int:
    """Write `<s> text </s> tag` as far as wanted; returns how many ids that is."""
    filled = 0
    if opened:
        out[filled] = frame.bos
        filled += 1
    out[filled : filled + len(text)] = text
    filled += len(text)
    if closed:
        out[filled] = frame.eos
        filled += 1
    if tag >= 0:
        out[filled] = tag
        filled += 1
    return filled
