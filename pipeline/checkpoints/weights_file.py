"""Weights of a whole network from the shares of its ranks, as a safetensors file, a piece at a time in memory.

The format (https://github.com/huggingface/safetensors#format) is a length, a JSON header and the bytes of all tensors;
the library itself writes it only from whole tensors in memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import orjson

_ITEM_BYTES = 4
_ALIGNMENT = 8


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one parameter, flattened, in float32."""

    name: str
    start: int
    """First element."""
    count: int
    read: Callable[[], bytes | memoryview]
    """Gives the bytes, little-endian."""


class IncompleteWeightsError(Exception):
    """The pieces are not the whole of every parameter."""


def write_weights(stream: Sink, shapes: Mapping[str, Sequence[int]], pieces: Iterable[Piece]) -> None:
    """Write float32 tensors of these names and shapes, put together from pieces.

    Raises:
        IncompleteWeightsError: some elements are in no piece, or in two.
    """
    by_name: defaultdict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_name[piece.name].append(piece)
    if unknown := by_name.keys() - shapes.keys():
        raise IncompleteWeightsError(f"there are no such parameters: {', '.join(sorted(unknown))}")
    stream.write(_header(shapes))
    for name, shape in shapes.items():
        position = 0
        for piece in sorted((piece for piece in by_name[name] if piece.count), key=lambda one: one.start):
            if piece.start != position:
                raise IncompleteWeightsError(
                    f"{name}: elements {position} to {piece.start} are in no rank's share, or in two"
                )
            stream.write(piece.read())
            position += piece.count
        if position != math.prod(shape):
            raise IncompleteWeightsError(f"{name}: {position} of {math.prod(shape)} elements are there")


def write_pieces(stream: Sink, pieces: Sequence[Piece]) -> None:
    """Write pieces so that `read_pieces` finds them again."""
    stream.write(_header({f"{piece.name}:{piece.start}": (piece.count,) for piece in pieces}))
    for piece in pieces:
        stream.write(piece.read())


def read_pieces(stream: BinaryIO) -> list[Piece]:
    """The pieces of a file that stays open for as long as they are read."""
    length = int.from_bytes(stream.read(_ALIGNMENT), "little")
    header = orjson.loads(stream.read(length))
    found = []
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        name, _, start = key.rpartition(":")
        begin, end = entry["data_offsets"]
        offset = _ALIGNMENT + length + begin
        found.append(
            Piece(
                name,
                int(start),
                (end - begin) // _ITEM_BYTES,
                lambda offset=offset, size=end - begin: _read(stream, offset, size),
            )
        )
    return found


def _read(stream: BinaryIO, offset: int, size_bytes: int) -> bytes:
    stream.seek(offset)
    data = stream.read(size_bytes)
    if len(data) != size_bytes:
        raise IncompleteWeightsError(f"a rank's share ends after {offset + len(data)} bytes")
    return data


def array_piece(name: str, start: int, values: np.ndarray) -> Piece:
    """A piece that is in memory; `values` is 1-D float32."""
    assert values.dtype == np.float32
    assert values.ndim == 1
    return Piece(name, start, values.size, lambda: np.ascontiguousarray(values).data.cast("B"))


def _header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size_bytes = math.prod(shape) * _ITEM_BYTES
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + size_bytes],
        }
        offset += size_bytes
    text = orjson.dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
