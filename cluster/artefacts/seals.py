"""Files that are read back although no manifest lists them: JSON files with a checksum, signed where another process
continues from them; seals beside other files; and the cache of verified files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts import signatures
from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import canonical_json, seal, unseal, write_durably
from cluster.artefacts.reading import read_bytes, sha256_of

_SIGNATURE = "signature"


def write_sealed(path: Path, contents: Mapping[str, Any], *, signed: bool = False) -> None:
    """Write a JSON file with a checksum, durably.

    Args:
        signed: add a signature where this process signs, because another process continues from the file.
    """
    if signed and signatures.is_signing():
        contents = {**contents, _SIGNATURE: signatures.sign(canonical_json(contents)).model_dump()}
    write_durably(path, orjson.dumps(seal(contents), option=None if signed else orjson.OPT_INDENT_2))


def read_sealed(path: Path | str, *, signed: bool = False) -> dict[str, Any]:
    """The contents of a file that `write_sealed` wrote.

    Args:
        signed: require a good signature where this process signs, or asks for signatures.

    Raises:
        OSError, StorageError: as `read_bytes`.
        ValueError: the checksum does not fit the contents, or a signature is missing.
    """
    contents = unseal(orjson.loads(read_bytes(path)))
    signature = contents.pop(_SIGNATURE, None)
    if signed and signatures.is_sealing() and not signatures.is_vouched(canonical_json(contents), signature):
        raise ValueError("it has no signature by a trusted key")
    return contents


def write_seal(path: Path) -> None:
    """Sign a file of work in progress in a file beside it, where this process signs."""
    if signatures.is_signing():
        write_sealed(seal_of(path), {"sha256": sha256_of(path)}, signed=True)


def has_seal(path: Path) -> bool:
    """Whether a file of work in progress may be continued from: where signatures are asked for, it needs one."""
    if not signatures.is_sealing():
        return True
    try:
        return read_sealed(seal_of(path), signed=True) == {"sha256": sha256_of(path)}
    except (OSError, ValueError):
        return False


def seal_of(path: Path) -> Path:
    """The file of `write_seal`."""
    return path.with_name(f"{path.name}.seal")


SETTLED_NS = 2_000_000_000
"""Coarsest resolution of file times: a file that was changed just now may change again with the same times."""


class SeenFiles:
    """Size, times and inode of files when their hash was compared, by path: those that did not change since need not be
    read again.

    Writing to a file changes its times, and no program can set the time of its last change (ctime) back. Bit rot on the
    disk is not noticed this way; only reading everything again notices it.
    """

    def __init__(self, known: dict[str, list[int | str]] | None = None) -> None:
        self._known = known or {}

    @classmethod
    def read(cls, path: Path, *, is_private: bool = False) -> SeenFiles:
        """Read a cache that `write` wrote; an empty one where the file is missing or damaged.

        Args:
            is_private: whether it lies where only this user can write, and need not be signed.
        """
        try:
            return cls(read_sealed(path, signed=not is_private)["files"])
        except (OSError, StorageError, ValueError, KeyError):
            return cls()

    def write(self, path: Path) -> None:
        """Write the cache to a file. Failing to write it only costs time at the next start."""
        with suppress(OSError):
            write_sealed(path, {"files": self._known}, signed=True)

    def has(self, path: Path, digest: str) -> bool:
        """Whether the file had this hash and did not change since."""
        return self._known.get(str(path.absolute())) == [*_appearance(path.stat()), digest]

    def add(self, path: Path, digest: str, before: os.stat_result) -> None:
        """Note that the file has this hash.

        Args:
            before: status of the file before it was read.
        """
        after = _appearance(path.stat())
        is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS
        if is_settled and _appearance(before) == after:
            self._known[str(path.absolute())] = [*after, digest]


def _appearance(found: os.stat_result) -> list[int | str]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
