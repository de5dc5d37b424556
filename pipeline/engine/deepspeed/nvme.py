"""Local disks under ZeRO-3 (Rajbhandari et al. 2021): what they need of a machine, a run's own directory on them."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from cluster.artefacts.errors import ConfigError, StorageError
from cluster.artefacts.manifest import hash_json
from cluster.operators import compile_lock, has_compiler, operator_directory
from cluster.train_group import Rank
from pipeline.runs.settings import OffloadConfig, ZeroConfig

SUB_GROUP_ELEMENTS = 100_000_000
"""ZeRO-3 updates so many elements of a shard at a time, and the parameter that passes them: what is offloaded is in
memory for one sub-group only."""
STATE_BUFFERS = 5
"""Through which state goes to and from disks, each for a sub-group: master, gradient, two moments and the average."""
PARAMETER_BUFFERS = 10
"""Through which parameters go, each for a rank's share of the largest one."""
_BLOCK_BYTES = 4096
_CAP_IPC_LOCK = 14
_SAME_NAMES = ("c_library_name", "c_block_size", "c_io_queue_depth")
"""What several source files of DeepSpeed's operator define, each for itself."""


def places_on_disk(zero: ZeroConfig) -> Iterator[tuple[str, OffloadConfig]]:
    """What the configuration has on local disks, with its key."""
    for name in ("offload_optimizer", "offload_parameters"):
        place = getattr(zero, name)
        if place is not None and place.device == "nvme":
            yield f"zero.{name}", place


def require_disks(zero: ZeroConfig) -> None:
    """Raise ConfigError unless this machine has what offload to its disks needs, where the configuration has that."""
    for key, place in places_on_disk(zero):
        or_host = f"set {key}.device=cpu"
        if not has_compiler():
            raise ConfigError(
                f"{key}.device nvme needs a C++ compiler on every machine, for DeepSpeed's operator.",
                next_step=f"install g++ and ninja (apt-get install g++ ninja-build), or {or_host}",
            )
        if not has_libaio():
            raise ConfigError(
                f"{key}.device nvme needs libaio with its header, which this machine lacks.",
                next_step="install it (Debian, Ubuntu: apt-get install libaio-dev; Fedora, RHEL: dnf install"
                f" libaio-devel; Arch: pacman -S libaio), or {or_host}",
            )
        assert place.path is not None
        _require_direct_io(key, place.path, or_host)


def require_lockable(needed: int) -> None:
    """Raise ConfigError unless this process may lock so many bytes, which DeepSpeed would otherwise end it for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and limit < needed and not _may_lock_all():
        raise ConfigError(
            f"Offload to disks locks {needed >> 20} MiB of each worker's memory, and this machine allows it"
            f" {limit >> 20} MiB.",
            next_step="raise the limit (ulimit -l unlimited; LimitMEMLOCK=infinity in systemd; --ulimit memlock=-1 in"
            " Docker), or set the offload's device=cpu",
        )


class SwapDirectory:
    """Where a rank's swap files lie while it trains: in a directory of the run's own on each disk that is used.

    What is in them is of no use to anybody else: a killed attempt leaves its files behind, and the next one removes
    them before it begins.
    """

    def __init__(self, zero: ZeroConfig, run: Path, rank: Rank) -> None:
        """
        Args:
            run: the run's directory, by which its own on the disks is named.
        """
        name = f"{run.name}-{hash_json(str(run.absolute()))[:12]}"
        self._runs = {place.path / name for _, place in places_on_disk(zero) if place.path is not None}
        self._rank = f"rank-{rank.rank:05d}"
        if not self._runs:
            return
        if rank.local_rank == 0:
            for directory in self._runs:
                shutil.rmtree(directory, ignore_errors=True)
        if rank.world_size > 1:
            dist.barrier()
        for directory in self._runs:
            (directory / self._rank).mkdir(parents=True)

    def of(self, place: OffloadConfig) -> Path | None:
        """The directory for one offload."""
        return next((one / self._rank for one in self._runs if one.parent == place.path), None)

    def require_room(self, place: OffloadConfig | None, size_bytes: int) -> None:
        """Raise StorageError where this rank's files of one offload find no room: DeepSpeed would end the process."""
        directory = None if place is None else self.of(place)
        if directory is None:
            return
        free = shutil.disk_usage(directory).free
        if free < size_bytes:
            raise StorageError(
                f"{directory} has room for {free >> 20} MiB, and what a worker offloads there takes"
                f" {size_bytes >> 20} MiB.",
                next_step="free disk space, take more workers, or offload to device=cpu",
            )

    def remove(self) -> None:
        """Delete this rank's files."""
        for directory in self._runs:
            shutil.rmtree(directory / self._rank, ignore_errors=True)
            with suppress(OSError):
                directory.rmdir()


def has_libaio() -> bool:
    """Whether operators can be linked with libaio here."""
    from deepspeed.ops import op_builder

    builder: Any = op_builder
    return builder.AsyncIOBuilder().is_compatible(verbose=False)


def load_operator() -> None:
    """Compile, once for each machine, and load what DeepSpeed reads and writes swap files by.

    Its twelve files include torch's headers each: as one file they compile in a tenth of the time.
    """
    from deepspeed.ops import op_builder

    builder: Any = op_builder

    class OneFile(builder.AsyncIOBuilder):
        def sources(self) -> list[str]:
            return [str(_joined([Path(self.deepspeed_src_path(path)) for path in super().sources()]))]

        def include_paths(self) -> list[str]:
            return [str(_source_directory()), *super().include_paths()]

    with compile_lock():
        # It is kept by its name: DeepSpeed finds it loaded.
        OneFile().load(verbose=False)


def _joined(sources: list[Path]) -> Path:
    """One source file of several, whose headers may be included more than once."""
    directory = _source_directory()
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for header in sorted({header for source in sources for header in source.parent.glob("*.h")}):
        _write_changed(directory / header.name, "#pragma once\n" + header.read_text())
    for number, source in enumerate(sources):
        _write_changed(directory / source.name, source.read_text())
        lines += [f"#define {name} {name}_{number}" for name in _SAME_NAMES]
        lines += [f'#include "{source.name}"', *(f"#undef {name}" for name in _SAME_NAMES)]
    joined = directory / "async_io_sources.cpp"
    _write_changed(joined, "\n".join(lines) + "\n")
    return joined


def _source_directory() -> Path:
    return operator_directory() / "async_io_source"


def _write_changed(path: Path, text: str) -> None:
    """Write a file unless it is so already: what is newer is compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _may_lock_all() -> bool:
    """Whether the kernel asks nothing of this process about its locked memory (CAP_IPC_LOCK)."""
    status = Path("/proc/self/status").read_text()
    capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(capabilities, 16) >> _CAP_IPC_LOCK & 1)


def _require_direct_io(key: str, path: Path, or_host: str) -> None:
    """Write a block past the page cache, as DeepSpeed will."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file, mmap.mmap(-1, _BLOCK_BYTES) as block:
            try:
                direct = os.open(file.name, os.O_WRONLY | os.O_DIRECT)
                with os.fdopen(direct, "wb", buffering=0) as stream:
                    stream.write(block)
            except OSError as error:
                raise ConfigError(
                    f"{key}.path {path} is on a file system that cannot be written past its cache (O_DIRECT:"
                    f" {error.strerror}), as DeepSpeed does.",
                    next_step=f"name a directory on a local disk with ext4 or xfs, or {or_host}",
                ) from None
    except OSError as error:
        raise ConfigError(
            f"{key}.path {path} cannot be written on this machine: {error.strerror}.",
            next_step=f"name a directory on a local disk of every machine, or {or_host}",
        ) from None
