"""A copy of the training state in host memory, which a thread writes while training goes on."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from typing import Any

import torch


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

    @property
    def size_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.nbytes() for _, copy in self._copies.values())


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
