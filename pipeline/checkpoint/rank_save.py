"""One save on one rank: copy the state to host memory, write the copy and mark the files done; rank 0 joins the weights
of all ranks, one slice in memory at a time.

The format of weights (https://github.com/huggingface/safetensors#format) is a length, a JSON header and the bytes of
all tensors; the library itself writes it only from whole tensors in memory.
"""

from __future__ import annotations

import io
import math
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import orjson
import torch
from torch.utils.serialization import config

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.storage import storage_errors
from pipeline.checkpoint.checkpoint import TrainerState
from pipeline.checkpoint.disk_store import PARTS_DIRECTORY, HashingWriter, Staging
from pipeline.engine.deepspeed.engine import Engine

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


_MARKERS_TIMEOUT_S = 120.0
"""Timeout in seconds for rank 0 to see the other ranks' done-markers, on a shared file system that may be slow."""


@dataclass(slots=True)
class RankSave:
    """One save on one rank."""

    state: TrainerState
    staging: Staging
    began: float
    files: dict[str, Any] = field(default_factory=dict)
    """Captured contents of the engine's files, by path in the checkpoint."""
    weights: dict[str, list[StoredSlice]] = field(default_factory=dict)
    """This rank's slices of MODEL_FILE and EMA_FILE."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of every tensor of the network by name, in its order."""
    error: Exception | None = None
    """The failure of this rank."""
    entries: list[FileEntry] = field(default_factory=list)
    """Files that this rank has written."""
    written: threading.Event = field(default_factory=threading.Event)
    """Set when this rank has written its files, or failed to."""
    settled: threading.Event = field(default_factory=threading.Event)
    """Set when all ranks have written or failed; `any_failed` is known then."""
    any_failed: bool = False
    waited_s: float = 0.0
    """Seconds that the training loop waited."""


def write_rank_files(save: RankSave, rank: int) -> None:
    """Write the files of a rank, and mark them done or failed. Never raises: see `RankSave.error`."""
    begun: list[str] = []
    try:
        if save.error is not None:
            raise save.error
        for path, contents in save.files.items():
            begun.append(path)
            # The manifest has a better checksum than the one inside of the file, which takes as long as writing it.
            with (
                save.staging.create(path) as stream,
                cast(Any, config).patch({"save.compute_crc32": False}),
            ):
                torch.save(contents, cast(Any, stream))
            save.entries.append(stream.entry(path))
        if rank != 0:
            for file, slices in save.weights.items():
                begun.append(_slices_path(file, rank))
                with save.staging.create(_slices_path(file, rank)) as stream:
                    write_slices(stream, slices)
            save.staging.mark(_done(rank), orjson.dumps(save.entries))
    except Exception as error:
        save.error = error
        with suppress(Exception):
            save.staging.remove(begun)
        if rank != 0:
            failure = explained(error, save.state.step)
            with suppress(Exception):
                save.staging.mark(_failed(rank), orjson.dumps([failure.problem, failure.next_step]))
    finally:
        save.files.clear()
        save.written.set()


def files_of_all(save: RankSave, world_size: int, place: str) -> list[FileEntry]:
    """The files of all ranks, once each rank has written or failed; called on rank 0.

    Raises:
        StorageError: a rank failed, or its markers do not appear here.
    """
    missing = set(range(1, world_size))
    entries, problems, deadline = list(save.entries), [], None
    while missing:
        # Asked before the look at the markers: a rank that failed has written down why before all have settled.
        settled = save.settled.is_set()
        markers = save.staging.marks()
        for rank in sorted(missing):
            if data := markers.get(_done(rank)):
                entries += [FileEntry(**entry) for entry in orjson.loads(data)]
                missing.discard(rank)
            elif data := markers.get(_failed(rank)):
                problems.append(orjson.loads(data))
                missing.discard(rank)
        if not missing:
            break
        if settled:
            if save.any_failed:
                break
            deadline = deadline or time.monotonic() + _MARKERS_TIMEOUT_S
            if time.monotonic() > deadline:
                raise StorageError(
                    f"The files of ranks {sorted(missing)} do not appear at {place}, though they were written.",
                    next_step="keep checkpoints where all machines see the same files (checkpoint.directory)",
                )
        time.sleep(save.staging.poll_s)
    if problems:
        problem, next_step = problems[0]
        raise StorageError(problem, kept="the earlier checkpoints", next_step=next_step)
    if missing and save.error is None:
        raise StorageError(
            f"Ranks {sorted(missing)} could not write to {place}.",
            kept="the earlier checkpoints",
            next_step="look at the disk and the permissions of the machines of these ranks (events.jsonl)",
        )
    return entries


def assemble(save: RankSave, file: str, world_size: int) -> FileEntry:
    """Write MODEL_FILE or EMA_FILE from the slices of all ranks, one slice in memory at a time."""
    with ExitStack() as opened:
        paths = (_slices_path(file, rank) for rank in range(1, world_size))
        streams = [opened.enter_context(save.staging.open(path)) for path in paths]
        slices = [*save.weights[file], *(one for stream in streams for one in read_slices(stream))]
        with save.staging.create(file) as target:
            write_weights(target, save.shapes, slices)
    return target.entry(file)


def own_slices(engine: Engine, kind: Literal["weights", "average"], snapshot: Snapshot) -> list[StoredSlice]:
    """Copies of this rank's slices of the weights or of their average."""
    return [
        from_array(one.name, one.start, snapshot.tensor(one.values).detach().numpy())
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


def _done(rank: int) -> str:
    return f"rank-{rank:05d}.done"


def _failed(rank: int) -> str:
    return f"rank-{rank:05d}.failed"


def _slices_path(file: str, rank: int) -> str:
    return f"{PARTS_DIRECTORY}/{file}.{rank:05d}"
