"""Artefacts that several tests of this folder make."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    fingerprint_of,
    make_manifest,
    manifest_bytes,
    seal,
    unseal,
)
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import commit, staging_directory

FILES = {"a.bin": b"a" * 3000, "inner/b.bin": b"b" * 2000}
SIZE_BYTES = 5000


def stage(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files of an artefact to its staging directory."""
    staging = staging_directory(directory, "made-by-a-test")
    staging.mkdir(parents=True)
    for name, data in files.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_bytes(data)
    return staging


def make(directory: Path, files: Mapping[str, bytes] = FILES, kind: str = "tokens") -> Path:
    """Commit an artefact."""
    commit(stage(directory, files), directory, kind, config={})
    return directory


def forged(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A changed manifest with the checksum and the fingerprint that follow, as an attacker writes it."""
    contents = unseal(orjson.loads(data))
    change(contents)
    files: Any = [SimpleNamespace(**one) for one in contents["files"]]
    contents["fingerprint"] = fingerprint_of(contents["kind"], contents["config"], (), files)
    return orjson.dumps(seal(contents))


def claim_a_huge_file(uri: str) -> None:
    """Overwrite the manifest in a store by one of a file of 2**60 bytes."""
    entry = FileEntry(path="huge", size_bytes=1 << 60, xxh3_128="0" * 32)
    manifest = make_manifest("tokens", config={}, inputs=[], files=[entry], stats={})
    Remote.open(uri).write(MANIFEST_NAME, manifest_bytes(manifest))
