"""A copy of the training state, made behind the loop: in host memory, or on disk of what lies on disk.

Between two updates nothing changes the masters, the optimizer's state or the weights: forward and backward passes only
read them. So the loop waits only until it is known what is to be copied; a thread copies while the next step computes,
and the next update waits for that. Everything that is no tensor, such as learning rates and the loss scaler, is copied
at once.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.engine.deepspeed.lean_imports import left_out

# DeepSpeed's autotuner imports MLflow where it is installed, and every process of a run would.
with left_out("mlflow"):
    from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from pipeline.engine.deepspeed.swapped import swapped

_NOWHERE = Path("nowhere")
"""Names of captured files are relative to it; nothing is written there."""


class HostBuffers:
    """Memory for copies, kept from one save to the next: fresh pages would cost several times the copy itself."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[int, bool, str | None], list[torch.Tensor]] = defaultdict(list)

    def take(self, size_bytes: int, *, pinned: bool, directory: str | None = None) -> torch.Tensor:
        """A uint8 tensor of `size_bytes`; page-locked when `pinned`, as copies from a GPU want it.

        Args:
            directory: where a file holds it, for what memory has no room for. Its name is gone at once, and the file
                with the process.
        """
        free = self._free[size_bytes, pinned, directory]
        if free:
            return free.pop()
        return _allocate(size_bytes, pinned) if directory is None else _allocate_file(size_bytes, directory)

    def give_back(self, buffer: torch.Tensor, *, pinned: bool, directory: str | None = None) -> None:
        """Allow a buffer to be used again."""
        self._free[buffer.numel(), pinned, directory].append(buffer)


@dataclass(frozen=True, slots=True)
class _Copy:
    original: torch.UntypedStorage
    buffer: torch.Tensor

    @property
    def pinned(self) -> bool:
        return self.original.device.type == "cuda"


class Snapshot:
    """Copies of tensors: first all of them are collected, then `copy` fills them.

    Every storage is copied once: tensors that share memory still do so in the copies, as in `torch.save`.
    """

    def __init__(self, buffers: HostBuffers) -> None:
        self._buffers = buffers
        # By file, or by address; the originals are kept, so that addresses are not used again.
        self._copies: dict[str | int, _Copy] = {}
        self._taken: list[tuple[torch.Tensor, bool, str | None]] = []
        self._ready: list[torch.cuda.Event] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with the same type, shape and strides; its values are there after `copy`.

        It is in host memory, or in a file without a name beside the one that the tensor is mapped from.
        """
        if tensor.is_meta:
            return tensor
        storage = tensor.untyped_storage()
        file = storage.filename
        key = file or storage._cdata
        if key not in self._copies:
            pinned = storage.device.type == "cuda"
            directory = os.path.dirname(file) if file else None
            buffer = self._buffers.take(storage.nbytes(), pinned=pinned, directory=directory)
            self._taken.append((buffer, pinned, directory))
            self._copies[key] = _Copy(storage, buffer)
        copy = torch.empty(0, dtype=tensor.dtype).set_(
            self._copies[key].buffer.untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )
        return copy.requires_grad_(tensor.requires_grad)

    def tree(self, contents: Any, values: Mapping[torch.Tensor, torch.Tensor] | None = None) -> Any:
        """A deep copy of anything that can be pickled, its tensors as `tensor` gives them.

        Args:
            values: tensors that others stand for, by those.
        """
        found = values or {}
        tensors: list[torch.Tensor] = []
        stream = io.BytesIO()
        _Pickler(stream, tensors).dump(contents)
        stream.seek(0)
        return _Unpickler(stream, [self.tensor(found.get(one, one)) for one in tensors]).load()

    def complete(self) -> None:
        """All tensors have been collected. What a GPU was asked to do to them until now comes before the copy."""
        for device in {copy.original.device for copy in self._copies.values() if copy.pinned}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self._ready.append(event)

    def copy(self) -> None:
        """Copy the values, in any thread; nothing may change the originals before this returns."""
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
                # Not by torch, which would share this out over as many threads again as training has.
                np.copyto(copy.buffer.numpy(), _bytes_of(copy.original).numpy())
        for stream in streams.values():
            stream.synchronize()

    @property
    def size_bytes(self) -> int:
        """Memory that the copies take, or space on disk."""
        return sum(buffer.numel() for buffer, *_ in self._taken)

    def release(self) -> None:
        """Give the memory back; the copies must not be used any more."""
        for buffer, pinned, directory in self._taken:
            self._buffers.give_back(buffer, pinned=pinned, directory=directory)
        self._taken.clear()
        self._copies.clear()


class Capture(CheckpointEngine):
    """What DeepSpeed hands its state to instead of writing it.

    It never raises: the other ranks already wait for this one in a collective. What went wrong is in `error`.
    """

    def __init__(
        self, snapshot: Snapshot, leave_out: Collection[str], swapped: Mapping[torch.Tensor, torch.Tensor]
    ) -> None:
        """
        Args:
            leave_out: names of the network's weights of which only type and shape are kept.
            swapped: the values of tensors that are empty because they lie on disk.
        """
        super().__init__()
        self._snapshot, self._leave_out, self._swapped = snapshot, leave_out, swapped
        self.files: dict[str, Any] = {}
        """Contents by path in the checkpoint; the snapshot copies their tensors."""
        self.error: Exception | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing needs preparing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories are made where the files are written."""

    def save(self, state_dict: Any, path: str) -> None:
        """Take what is to be written to `path`."""
        try:
            if self._leave_out and state_dict.get("module"):
                module = {
                    name: torch.empty_like(value, device="meta") if name in self._leave_out else value
                    for name, value in state_dict["module"].items()
                }
                state_dict = state_dict | {"module": module}
            name = Path(path).relative_to(_NOWHERE).as_posix()
            self.files[name] = self._snapshot.tree(state_dict, self._swapped)
        except Exception as error:
            self.error = error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Only saves are captured."""
        raise NotImplementedError(path)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """The files are committed when all ranks have written theirs."""
        return True


def capture(engine: Any, snapshot: Snapshot, tag: str, client_state: Mapping[str, Any]) -> Capture:
    """Let DeepSpeed's `save_checkpoint` run into a snapshot. All ranks must call it.

    Args:
        engine: the DeepSpeed engine.
        tag: name of the directory of its files.
    """
    captured = Capture(snapshot, _weights_of_masters(engine), swapped(engine.optimizer))
    own = engine.checkpoint_engine
    engine.checkpoint_engine = captured
    # A script that puts weights together, which model.safetensors makes needless; it would be written at once.
    engine._copy_recovery_script = lambda save_path: None
    # Its swap files, which it would copy at once, hold what is captured.
    engine.zero_nvme_offload_optimizer = lambda: False
    try:
        engine.save_checkpoint(str(_NOWHERE), tag=tag, client_state=dict(client_state), save_latest=False)
    finally:
        engine.checkpoint_engine = own
        del engine._copy_recovery_script, engine.zero_nvme_offload_optimizer
    return captured


def _weights_of_masters(engine: Any) -> Collection[str]:
    """Weights that need not be saved: restoring reads them from the optimizer's float32 masters, everyone else from
    the weights' own file. In stage 3 DeepSpeed itself leaves them out."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    has_masters = hasattr(optimizer, "fp32_groups_flat") or hasattr(optimizer, "fp32_groups")
    if stage == 3 or (stage == 0 and not has_masters):
        return ()
    return {name for name, one in engine.module.named_parameters(remove_duplicate=False) if one.requires_grad}


def _allocate(size_bytes: int, pinned: bool) -> torch.Tensor:
    if pinned or not size_bytes:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned)
    pages = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _allocate_file(size_bytes: int, directory: str) -> torch.Tensor:
    with tempfile.NamedTemporaryFile(dir=directory, prefix="copy-") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return torch.from_file(file.name, shared=True, size=size_bytes, dtype=torch.uint8)


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
