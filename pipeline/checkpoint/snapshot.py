"""A copy of the training state in host memory, made while training goes on.

Between two updates nothing changes the masters, the optimizer's state or the weights: forward and backward passes only
read them. So the loop waits only until it is known what to copy; a thread copies while the next step computes, and the
next update waits for that. Everything that is not a tensor, such as learning rates and the loss scaler, is copied at
once.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


class HostBuffers:
    """A pool of memory for copies, kept between saves: allocating fresh pages would cost several times the copy."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[int, bool], list[torch.Tensor]] = defaultdict(list)

    def take(self, size_bytes: int, *, pinned: bool) -> torch.Tensor:
        """A uint8 tensor of `size_bytes`; page-locked when `pinned`, as copies from a GPU want it."""
        free = self._free[size_bytes, pinned]
        return free.pop() if free else _allocate(size_bytes, pinned)

    def give_back(self, buffer: torch.Tensor, *, pinned: bool) -> None:
        """Return a buffer to the pool."""
        self._free[buffer.numel(), pinned].append(buffer)


@dataclass(frozen=True, slots=True)
class _Copy:
    original: torch.UntypedStorage
    buffer: torch.Tensor

    @property
    def pinned(self) -> bool:
        return self.original.device.type == "cuda"


class Snapshot:
    """Copies of tensors: first all are collected, then `copy` fills them.

    Every storage is copied once: tensors that share memory share it in the copies too, as with `torch.save`.
    """

    def __init__(self, buffers: HostBuffers) -> None:
        self._buffers = buffers
        # By address; the originals are kept, so that addresses are not used again.
        self._copies: dict[int, _Copy] = {}
        self._taken: list[tuple[torch.Tensor, bool]] = []
        self._ready: list[torch.cuda.Event] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory with the same type, shape and strides; `copy` fills in its values."""
        if tensor.is_meta:
            return tensor
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._copies:
            pinned = storage.device.type == "cuda"
            buffer = self._buffers.take(storage.nbytes(), pinned=pinned)
            self._taken.append((buffer, pinned))
            self._copies[key] = _Copy(storage, buffer)
        copy = torch.empty(0, dtype=tensor.dtype).set_(
            self._copies[key].buffer.untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )
        return copy.requires_grad_(tensor.requires_grad)

    def tree(self, contents: Any) -> Any:
        """A deep copy of anything that can be pickled, with `tensor`'s copies of its tensors."""
        tensors: list[torch.Tensor] = []
        stream = io.BytesIO()
        _Pickler(stream, tensors).dump(contents)
        stream.seek(0)
        return _Unpickler(stream, [self.tensor(one) for one in tensors]).load()

    def complete(self) -> None:
        """Declare all tensors collected. `copy` waits for the GPU work that was queued before this call."""
        for device in {copy.original.device for copy in self._copies.values() if copy.pinned}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self._ready.append(event)

    def copy(self) -> None:
        """Copy the values, from any thread; nothing may change the originals before this returns."""
        copies = list(self._copies.values())
        self._copies.clear()
        streams = {
            copy.original.device: torch.cuda.Stream(copy.original.device) for copy in copies if copy.pinned
        }
        for stream in streams.values():
            for event in self._ready:
                stream.wait_event(event)
        for copy in copies:
            if copy.pinned:
                with torch.cuda.stream(streams[copy.original.device]):
                    copy.buffer.copy_(_bytes_of(copy.original), non_blocking=True)
            else:
                # Not with torch, which would use as many threads again as training has.
                np.copyto(copy.buffer.numpy(), _bytes_of(copy.original).numpy())
        for stream in streams.values():
            stream.synchronize()

    def release(self) -> None:
        """Return the memory to the pool; the copies must not be used any more."""
        for buffer, pinned in self._taken:
            self._buffers.give_back(buffer, pinned=pinned)
        self._taken.clear()
        self._copies.clear()


def _allocate(size_bytes: int, pinned: bool) -> torch.Tensor:
    if pinned or not size_bytes:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned)
    pages = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


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
