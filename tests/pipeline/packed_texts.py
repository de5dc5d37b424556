"""Small packed micro-batches whose every token tells where it comes from, and batches taken apart into their pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from pipeline.objectives.base import Batch, Objective
from pipeline.objectives.vocabulary import Vocabulary, make_vocabulary
from pipeline.samples.packed import Packed

BOS, PAD, EOS, UNK = range(4)
ROLES = {"bos": BOS, "pad": PAD, "eos": EOS, "unk": UNK}
NUM_TOKENS = 4000
FIRST_TEXT = 4
"""Ids from here are text."""


@lru_cache(64)
def vocabulary_for(
    objective: Objective, languages: tuple[str, ...] = ("en",), *, word_length: int = 1
) -> Vocabulary:
    """A byte-pair vocabulary in which every `word_length`-th id begins a word, with the objective's own tokens."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    texts = [
        f"{'Ġ' if number % word_length == 0 else ''}t{number}" for number in range(FIRST_TEXT, NUM_TOKENS)
    ]
    ids = {text: number for number, text in enumerate([*specials, *texts])}
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(specials)
    return make_vocabulary(tokenizer.to_str(), ROLES, objective.extra_tokens(languages))


def packed_of(ids: Any, boundaries: Any = None, **fields: np.ndarray) -> Packed:
    """Rows of these ids, each one piece unless there are other boundaries: the first samples of the first epoch."""
    ids = np.asarray(ids, dtype=np.int64)
    if boundaries is None:
        boundaries = range(0, ids.size + 1, ids.shape[1])
    numbers = {"sample_ids": np.arange(len(ids), dtype=np.uint64), "epochs": np.zeros(len(ids), np.uint64)}
    return Packed(ids, np.asarray(boundaries, dtype=np.int32), **{**numbers, **fields})


def one_text_per_row(batch: int, length: int, *, num_sentences: int = 1) -> Packed:
    """`<s> text </s>` in every row, the text counting up from `FIRST_TEXT`, in sentences of nearly equal lengths."""
    ids = np.tile(np.arange(length) + FIRST_TEXT - 1, (batch, 1))
    ids[:, 0], ids[:, -1] = BOS, EOS
    starts = 1 + np.linspace(0, length - 2, num_sentences, endpoint=False).astype(int)
    sentences = (np.arange(batch)[:, None] * length + starts).ravel().astype(np.int32)
    return packed_of(ids, sentence_starts=sentences, langs=np.zeros(batch, dtype=np.int64))


def many_texts_per_row(seed: int, batch: int, length: int, *, longest: int = 40) -> Packed:
    """Rows of texts of all lengths; some are cut by the end of the row, some rows end with padding.

    No token stands twice in a row.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    ids = np.full((batch, length), PAD)
    ends, sentences = [0], []
    for row in range(batch):
        tokens = generator.permutation(np.arange(FIRST_TEXT, NUM_TOKENS))
        column, stop = 0, length - int(generator.integers(0, 4))
        while column < stop:
            size = int(generator.integers(0, longest + 1))
            piece = np.concatenate(([BOS], tokens[column : column + size], [EOS]))[: stop - column]
            ids[row, column : column + len(piece)] = piece
            inside = np.flatnonzero(generator.random(len(piece)) < 0.2)
            inside = np.union1d(inside, 1) if len(piece) > 1 and piece[1] != EOS else inside[:0]
            sentences += [row * length + column + at for at in inside if at > 0 and piece[at] > EOS]
            column += len(piece)
            ends.append(row * length + column)
        if column < length:
            ends.append((row + 1) * length)
    return packed_of(
        ids,
        ends,
        sample_ids=generator.integers(0, 2**40, batch).astype(np.uint64),
        sentence_starts=np.asarray(sentences, dtype=np.int32),
        langs=np.zeros(batch, dtype=np.int64),
    )


def in_epoch(packed: Packed, epoch: int) -> Packed:
    """The same samples, met in another epoch."""
    return replace(packed, epochs=np.full_like(packed.epochs, epoch))


def row_alone(packed: Packed, row: int) -> Packed:
    """A micro-batch of one of the samples."""
    start, stop = (place * packed.input_ids.shape[1] for place in (row, row + 1))
    arrays = {name: getattr(packed, name) for name in Packed.__slots__}
    found: dict[str, Any] = {
        name: array if array is None else array[row : row + 1] for name, array in arrays.items()
    }
    for name, last in (("cu_seqlens", stop), ("sentence_starts", stop - 1)):
        array = arrays[name]
        found[name] = array[(array >= start) & (array <= last)] - start
    return Packed(**found)


def texts(packed: Packed) -> list[list[int]]:
    """The pieces that are not padding, with their `<s>` and `</s>`."""
    flat, cu = packed.input_ids.reshape(-1), packed.cu_seqlens
    pieces = [flat[start:stop].tolist() for start, stop in pairwise(cu)]
    return [piece for piece in pieces if piece[0] != PAD]


@dataclass(frozen=True)
class Pair:
    """A piece of an encoder-decoder's batch."""

    row: int
    source: list[int]
    decoder_inputs: list[int]
    targets: list[int]


def pairs(batch: Batch) -> list[Pair]:
    """The pieces that are not padding, checked for what every batch must be."""
    encoder, decoder = batch.inputs["input_ids"], batch.inputs["decoder_input_ids"]
    assert encoder.dtype == decoder.dtype == batch.inputs["targets"].dtype == np.int64
    boundaries = [_boundaries(batch.inputs, "cu_seqlens", encoder)]
    boundaries.append(_boundaries(batch.inputs, "decoder_cu_seqlens", decoder))
    assert len(boundaries[0]) == len(boundaries[1])
    positions = batch.inputs["predicted_positions"]
    assert (np.diff(positions) > 0).all()
    target_at = dict(zip(positions.tolist(), batch.inputs["targets"].tolist(), strict=True))
    assert batch.counts == {"denoise": len(target_at)}
    found, seen = [], 0
    for piece in range(len(boundaries[0]) - 1):
        start, stop = boundaries[0][piece : piece + 2]
        source = encoder.reshape(-1)[start:stop].tolist()
        row, first, last = start // encoder.shape[1], *boundaries[1][piece : piece + 2]
        predicted = [place for place in range(first, last) if place in target_at]
        seen += len(predicted)
        if set(source) == {PAD}:
            assert not predicted
            assert (decoder.reshape(-1)[first:last] == PAD).all()
            continue
        assert PAD not in source
        assert row == first // decoder.shape[1]
        # Only padding may follow what is predicted, where the encoder's row is full and the decoder's is not.
        assert predicted == list(range(first, first + len(predicted)))
        assert (decoder.reshape(-1)[first + len(predicted) : last] == PAD).all()
        inputs = decoder.reshape(-1)[predicted].tolist()
        found.append(Pair(row, source, inputs, [target_at[place] for place in predicted]))
    assert seen == len(target_at)
    return found


def sentinels_of(vocabulary: Vocabulary) -> list[int]:
    """Ids of T5's 100 sentinels."""
    return [vocabulary[f"<extra_id_{number}>"] for number in range(100)]


def hidden_spans(pair: Pair, sentinels: list[int]) -> list[list[int]]:
    """The spans that T5 took out, after checking that the target's sentinels are those of the source, in order."""
    used = [token for token in pair.source if token in sentinels]
    assert used == sentinels[: len(used)]
    found: list[list[int]] = []
    for token in pair.targets[:-1]:
        if token in sentinels:
            assert token == sentinels[len(found)]
            found.append([])
        else:
            found[-1].append(token)
    return found


def with_spans(pair: Pair, sentinels: list[int]) -> list[int]:
    """The source without `</s>`, with its spans in the sentinels' place."""
    hidden = dict(zip(sentinels, hidden_spans(pair, sentinels), strict=False))
    return [each for token in pair.source[:-1] for each in hidden.get(token, [token])]


def rows_of(batch: Batch, packed: Packed) -> list[Any]:
    """What a batch says of each row, wherever the row lies: pairs of an encoder-decoder, or arguments by name."""
    rows, length = range(len(packed.input_ids)), packed.input_ids.shape[1]
    if "decoder_input_ids" in batch.inputs:
        found = pairs(batch)
        return [[replace(pair, row=0) for pair in found if pair.row == row] for row in rows]
    inputs = {name: array for name, array in batch.inputs.items() if name != "cu_seqlens"}
    row_of = dict.fromkeys(inputs, inputs["predicted_positions"] // length)
    row_of |= {name: array // length for name, array in inputs.items() if name.endswith("_positions")}
    row_of |= {"input_ids": np.array(rows), "prefix_lengths": packed.cu_seqlens[:-1] // length}
    return [
        {
            name: (array[row_of[name] == row] - name.endswith("_positions") * row * length).tolist()
            for name, array in inputs.items()
        }
        for row in rows
    ]


def _boundaries(inputs: dict[str, np.ndarray], name: str, ids: np.ndarray) -> np.ndarray:
    rows = np.arange(0, ids.size + 1, ids.shape[1])
    if name not in inputs:
        return rows
    boundaries = inputs[name]
    assert boundaries.dtype == np.int32
    assert (np.diff(boundaries) >= 0).all()
    assert np.isin(rows, boundaries).all()
    return boundaries.astype(np.int64)
