"""Write the weights of a whole network from the slices of its ranks, as safetensors, one slice in memory at a time.

The format (https://github.com/huggingface/safetensors#format) is a length, a JSON header and the bytes of all tensors;
the library itself writes it only from whole tensors in memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import orjson

from pipeline.checkpoint.disk_store import HashingWriter

_ITEM_BYTES = 4
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """The part of one parameter that a rank holds: a contiguous range of the flattened parameter, in float32."""

    name: str
    start: int
    """Index of the first element."""
    count: int
    """Number of elements."""
    read: Callable[[], bytes | memoryview]
    """Returns the values as little-endian bytes."""


class IncompleteWeightsError(Exception):
    """The slices do not cover every parameter exactly."""


def write_weights(
    stream: HashingWriter, shapes: Mapping[str, Sequence[int]], slices: Iterable[StoredSlice]
) -> None:
    """Write float32 tensors of these names and shapes, put together from slices.

    Raises:
        IncompleteWeightsError: some elements are in no slice, or in two.
    """
    by_name: defaultdict[str, list[StoredSlice]] = defaultdict(list)
    for one in slices:
        by_name[one.name].append(one)
    if unknown := by_name.keys() - shapes.keys():
        raise IncompleteWeightsError(f"there are no such parameters: {', '.join(sorted(unknown))}")
    stream.write(_header(shapes))
    for name, shape in shapes.items():
        position = 0
        for one in sorted((one for one in by_name[name] if one.count), key=lambda one: one.start):
            if one.start != position:
                raise IncompleteWeightsError(
                    f"{name}: elements {position} to {one.start} are in no rank's slice, or in two"
                )
            stream.write(one.read())
            position += one.count
        if position != math.prod(shape):
            raise IncompleteWeightsError(f"{name}: {position} of {math.prod(shape)} elements are there")


def write_slices(stream: HashingWriter, slices: Sequence[StoredSlice]) -> None:
    """Write slices to a file for `read_slices`."""
    stream.write(_header({f"{one.name}:{one.start}": (one.count,) for one in slices}))
    for one in slices:
        stream.write(one.read())


def read_slices(stream: BinaryIO) -> list[StoredSlice]:
    """The slices in a file, which must stay open until they are read."""
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
            StoredSlice(
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
        raise IncompleteWeightsError(f"a rank's file ends after {offset + len(data)} bytes")
    return data


def from_array(name: str, start: int, values: np.ndarray) -> StoredSlice:
    """A slice in memory; `values` is 1-D float32."""
    assert values.dtype == np.float32
    assert values.ndim == 1
    return StoredSlice(name, start, values.size, lambda: np.ascontiguousarray(values).data.cast("B"))


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
