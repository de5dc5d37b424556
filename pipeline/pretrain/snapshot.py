"""A copy of the training state in host memory: what a save waits for; everything else happens behind the loop."""

from __future__ import annotations

import io
import mmap
import pickle
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine


class HostBuffers:
    """Memory for copies, kept from one save to the next: fresh pages would cost several times the copy itself."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[int, bool], list[torch.Tensor]] = defaultdict(list)

    def take(self, size_bytes: int, *, pinned: bool) -> torch.Tensor:
        """A uint8 tensor of `size_bytes`; page-locked when `pinned`, as copies from a GPU want it."""
        free = self._free[size_bytes, pinned]
        return free.pop() if free else _allocate(size_bytes, pinned)

    def give_back(self, buffer: torch.Tensor, *, pinned: bool) -> None:
        """Allow a buffer to be used again."""
        self._free[buffer.numel(), pinned].append(buffer)


class Snapshot:
    """Copies of tensors as they were when they were taken.

    Every storage is copied once: tensors that share memory still do so in the copies, as in `torch.save`.
    """

    def __init__(self, buffers: HostBuffers) -> None:
        self._buffers = buffers
        self._copies: dict[int, torch.Tensor] = {}
        self._pinned: dict[int, bool] = {}
        # Keeps the addresses that are the keys above from being used again before the snapshot ends.
        self._originals: list[torch.UntypedStorage] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory with the same type, shape and strides; on CUDA it is complete after `wait`."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._copies:
            pinned = storage.device.type == "cuda"
            buffer = self._buffers.take(storage.nbytes(), pinned=pinned)
            self._copies[key], self._pinned[key] = buffer, pinned
            self._originals.append(storage)
            buffer.copy_(_bytes_of(storage), non_blocking=True)
        copy = torch.empty(0, dtype=tensor.dtype).set_(
            self._copies[key].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        return copy.requires_grad_(tensor.requires_grad)

    def tree(self, contents: Any) -> Any:
        """A deep copy of anything that can be pickled, its tensors copied as `tensor` does."""
        tensors: list[torch.Tensor] = []
        stream = io.BytesIO()
        _Pickler(stream, tensors).dump(contents)
        stream.seek(0)
        return _Unpickler(stream, [self.tensor(tensor) for tensor in tensors]).load()

    def wait(self) -> None:
        """Return when all copies are complete."""
        self._originals.clear()
        if any(self._pinned.values()):
            torch.cuda.current_stream().synchronize()

    @property
    def size_bytes(self) -> int:
        """Memory that the copies take."""
        return sum(buffer.numel() for buffer in self._copies.values())

    def release(self) -> None:
        """Give the memory back; the copies must not be used any more."""
        for key, buffer in self._copies.items():
            self._buffers.give_back(buffer, pinned=self._pinned[key])
        self._copies.clear()


class Capture(CheckpointEngine):
    """What DeepSpeed hands its state to instead of writing it.

    It never raises: the other ranks already wait for this one in a collective. What went wrong is in `error`.
    """

    def __init__(self, snapshot: Snapshot, root: Path) -> None:
        super().__init__()
        self._snapshot, self._root = snapshot, root
        self.files: dict[str, Any] = {}
        """Copied contents by path relative to `root`."""
        self.error: Exception | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing needs preparing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories are made where the files are written."""

    def save(self, state_dict: Any, path: str) -> None:
        """Copy what is to be written to `path`."""
        try:
            self.files[Path(path).relative_to(self._root).as_posix()] = self._snapshot.tree(state_dict)
        except Exception as error:
            self.error = error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Only saves are captured."""
        raise NotImplementedError(path)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """The files are committed when all ranks have written theirs."""
        return True


def capture(
    engine: Any, snapshot: Snapshot, root: Path, tag: str, client_state: Mapping[str, Any]
) -> Capture:
    """Let DeepSpeed's `save_checkpoint` run into memory. All ranks must call it.

    Args:
        engine: the DeepSpeed engine.
        root: where DeepSpeed copies what it keeps on NVMe; without that it need not exist.
        tag: name of the directory of its files.
    """
    captured = Capture(snapshot, root)
    own = engine.checkpoint_engine
    engine.checkpoint_engine = captured
    # A script that puts weights together, which model.safetensors makes needless; it would be written at once.
    engine._copy_recovery_script = lambda save_path: None
    try:
        engine.save_checkpoint(str(root), tag=tag, client_state=dict(client_state), save_latest=False)
    finally:
        engine.checkpoint_engine = own
        del engine._copy_recovery_script
    return captured


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
