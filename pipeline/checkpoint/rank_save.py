"""One save on one rank: the state is copied to host memory, and the copy is written. Rank 0 joins the weights of all
ranks, one slice in memory at a time.

The format of weights (https://github.com/huggingface/safetensors#format) is a length, a JSON header and the bytes of
all tensors; the library itself writes it only from whole tensors in memory.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import orjson
import torch
from torch.utils.serialization import config

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import FileEntry, HashingWriter
from cluster.artefacts.storage import storage_errors
from pipeline.checkpoint.checkpoint import TrainerState
from pipeline.checkpoint.staging import Staging
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.interface import ParameterSlice

_ITEM_BYTES = 4
_ALIGNMENT = 8


class Snapshot:
    """Copies tensors to host memory.

    Every storage is copied once: tensors that share memory share it in the copies too, as with `torch.save`. Memory
    stays for the next copies: fresh pages would cost several times the copying.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[torch.UntypedStorage]] = defaultdict(list)
        """Storages of earlier copies, by their size in bytes."""
        # By device and address; the originals are kept, so that addresses are not used again.
        self._copies: dict[tuple[str, int], tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory with the same type, shape and strides."""
        if tensor.is_meta:
            return tensor
        original = tensor.untyped_storage()
        key = str(original.device), original.data_ptr()
        if key not in self._copies or not key[1]:
            free = self._free[original.nbytes()]
            copy = free.pop() if free else torch.UntypedStorage(original.nbytes())
            self._copies[key] = original, copy.copy_(original)
        copy = torch.empty(0, dtype=tensor.dtype).set_(
            self._copies[key][1], tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        return copy.requires_grad_(tensor.requires_grad)

    def tree(self, contents: Any) -> Any:
        """A deep copy of anything that can be pickled, with `tensor`'s copies of its tensors."""
        tensors: list[torch.Tensor] = []
        stream = io.BytesIO()
        _Pickler(stream, tensors).dump(contents)
        stream.seek(0)
        return _Unpickler(stream, [self.tensor(one) for one in tensors]).load()

    def reset(self) -> None:
        """Take the memory of all copies for the next ones; these copies must not be used any more."""
        for _, copy in self._copies.values():
            self._free[copy.nbytes()].append(copy)
        self._copies.clear()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self._tensors)
            self._tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._tensors[pid]


@dataclass(slots=True)
class RankSave:
    """One save on one rank."""

    state: TrainerState
    staging: Staging
    began: float
    files: dict[str, Any] = field(default_factory=dict)
    """Captured contents of the engine's files, by path in the checkpoint."""
    weights: dict[str, list[ParameterSlice]] = field(default_factory=dict)
    """Copies of this rank's slices of MODEL_FILE and EMA_FILE."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of every tensor of the network by name, in its order."""
    error: Exception | None = None
    """The failure of this rank."""
    waited_s: float = 0.0
    """Seconds that the training loop waited."""


class Extent(NamedTuple):
    """The place of a slice in the flattened parameter."""

    name: str
    start: int
    count: int
    """Number of elements."""


class Written(NamedTuple):
    """What a rank tells rank 0 when it has written its files, or failed to."""

    entries: list[FileEntry]
    extents: dict[str, list[Extent]]
    """Of the slices of MODEL_FILE and EMA_FILE, in the order of `RankSave.weights`."""
    error: StorageError | None


def write_rank_files(save: RankSave) -> Written:
    """Write the files of a rank; never raises."""
    entries: list[FileEntry] = []
    try:
        if save.error is not None:
            raise save.error
        for path, contents in save.files.items():
            # The manifest has a better checksum than the one inside of the file, which takes as long as writing it.
            with (
                save.staging.create(path) as stream,
                cast(Any, config).patch({"save.compute_crc32": False}),
            ):
                torch.save(contents, cast(Any, stream))
            entries.append(stream.entry(path))
    except Exception as error:
        return Written([], {}, explained(error, save.state.step))
    finally:
        save.files.clear()
    extents = {
        file: [Extent(one.name, one.start, one.values.numel()) for one in slices]
        for file, slices in save.weights.items()
    }
    return Written(entries, extents, None)


def own_slices(
    engine: Engine, kind: Literal["weights", "average"], snapshot: Snapshot
) -> list[ParameterSlice]:
    """Copies of this rank's slices of the weights or of their average."""
    return [
        ParameterSlice(one.name, one.start, snapshot.tensor(one.values).detach())
        for one in engine.slices(kind)
        if one.values.numel()
    ]


def explained(error: Exception, step: int) -> StorageError:
    """Any error as a StorageError, because a save never ends training by itself."""
    if isinstance(error, StorageError):
        return error
    try:
        with storage_errors(Path(f"the checkpoint of step {step}")):
            raise error
    except StorageError as explained:
        return explained
    except Exception:
        return StorageError(
            f"The checkpoint of step {step} could not be saved: {type(error).__name__}: {error}",
            kept="the earlier checkpoints",
        )


class IncompleteWeightsError(Exception):
    """The slices do not cover every parameter exactly."""


def write_weights(
    stream: HashingWriter,
    shapes: Mapping[str, Sequence[int]],
    slices: Iterable[tuple[Extent, Callable[[], np.ndarray]]],
) -> None:
    """Write float32 tensors of these names and shapes, put together from slices.

    Args:
        slices: each with a function that returns its values, [count] float32.

    Raises:
        IncompleteWeightsError: some elements are in no slice, or in two.
    """
    by_name: defaultdict[str, list[tuple[Extent, Callable[[], np.ndarray]]]] = defaultdict(list)
    for one in slices:
        by_name[one[0].name].append(one)
    if unknown := by_name.keys() - shapes.keys():
        raise IncompleteWeightsError(f"there are no such parameters: {', '.join(sorted(unknown))}")
    stream.write(_header(shapes))
    for name, shape in shapes.items():
        position = 0
        for extent, read in sorted((one for one in by_name[name] if one[0].count), key=lambda one: one[0]):
            if extent.start != position:
                raise IncompleteWeightsError(
                    f"{name}: elements {position} to {extent.start} are in no rank's slice, or in two"
                )
            stream.write(read().data.cast("B"))
            position += extent.count
        if position != math.prod(shape):
            raise IncompleteWeightsError(f"{name}: {position} of {math.prod(shape)} elements are there")


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
