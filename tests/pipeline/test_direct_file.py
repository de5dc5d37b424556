"""Files past the page cache have the bytes that were written, wherever they lie in memory and in the file."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from cluster.artefacts.storage import hash_tree
from pipeline.checkpoints.checkpoint import checkpoint_name
from pipeline.checkpoints.direct_file import ALIGNMENT, DirectFile
from pipeline.checkpoints.snapshot import HostBuffers
from pipeline.checkpoints.staging import Staging

SIZES = (0, 1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, (1 << 24) - 1, (1 << 24) + ALIGNMENT, (1 << 25) + 5)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "page cache"])
def test_any_sequence_of_writes_and_flushes_gives_the_bytes_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
):
    if not direct:
        refuse(monkeypatch)
    memory = mmap.mmap(-1, SIZES[-1] + ALIGNMENT)
    source = np.frombuffer(memory, dtype=np.uint8)
    source[:] = np.random.Generator(np.random.Philox(1)).integers(0, 256, len(source))
    draw = np.random.Generator(np.random.Philox(2))
    for number in range(6):
        expected = b""
        with DirectFile(tmp_path / f"{number}") as file:
            for size in draw.choice(SIZES, 5).tolist():
                start = int(draw.choice([0, 0, 1, 64]))
                assert file.write(memoryview(memory)[start : start + size]) == size
                expected += memory[start : start + size]
                if draw.integers(4) == 0:
                    file.flush()
            file.flush()
        assert (tmp_path / f"{number}").read_bytes() == expected


def test_a_file_system_that_refuses_direct_writes_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = os.urandom(3 * ALIGNMENT + 7)
    file = DirectFile(tmp_path / "file")
    stream, refused = file._file, []

    class Refusing:
        def write(self, given: memoryview) -> int:
            if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_DIRECT:
                refused.append(len(given))
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return stream.write(given[:5000]) or 0

        def fileno(self) -> int:
            return stream.fileno()

        def close(self) -> None:
            stream.close()

    monkeypatch.setattr(file, "_file", Refusing())
    with file:
        file.write(data)
        file.flush()
    assert (tmp_path / "file").read_bytes() == data


def test_hashes_of_a_created_file_are_its_own_and_torch_reads_it(tmp_path: Path):
    buffer = HostBuffers().take(10 * ALIGNMENT, pinned=False).view(torch.float32)
    buffer.copy_(torch.arange(buffer.numel()))
    staging = Staging(tmp_path / "staging", tmp_path / checkpoint_name(1), "key")
    with staging.create("state.pt") as stream:
        torch.save({"a": buffer, "b": torch.ones(3)}, cast(Any, stream))
    assert hash_tree(tmp_path / "staging") == [stream.entry("state.pt")]
    found = torch.load(tmp_path / "staging/state.pt", mmap=True, weights_only=True)
    assert torch.equal(found["a"], buffer)
    assert torch.equal(found["b"], torch.ones(3))


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the file system one without direct writes."""

    def set_flags(file: object, command: int, *arguments: int) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 0

    monkeypatch.setattr("pipeline.checkpoints.direct_file.fcntl.fcntl", set_flags)
