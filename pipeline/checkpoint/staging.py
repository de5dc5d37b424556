"""A checkpoint while ranks write it: each rank its own files, which rank 0 commits together."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import HashingWriter, Manifest, signed
from cluster.artefacts.places import Place, Uri
from cluster.artefacts.remote import Remote
from cluster.artefacts.signatures import is_signing
from cluster.artefacts.storage import commit_manifest, find_damage, storage_errors

APPEARANCE_S = 120.0
"""Seconds that a shared file system may take to show rank 0 the files of other ranks."""


@dataclass(frozen=True)
class Staging:
    """One save of one step. Beside a target on a disk that all ranks share, the staging directory is renamed. Files for
    an object store are written to this machine, uploaded to their place and removed here; the manifest comes last."""

    path: Path
    """Directory where files are written."""
    target: Place
    """Place of the checkpoint."""

    @contextmanager
    def create(self, path: str) -> Iterator[HashingWriter]:
        """A new file, which is durable or uploaded when the context is left."""
        file = self.path / path
        try:
            with storage_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as stream:
                    writer = HashingWriter(stream, sha256=is_signing())
                    try:
                        yield writer
                    except Exception as error:
                        # A library that wrote to it (torch.save) raised another error than the stream.
                        raise writer.error or error from error
                    stream.flush()
                    if isinstance(self.target, Path):
                        os.fsync(stream.fileno())
            if isinstance(self.target, Uri):
                Remote.open(self.target).upload(file, path)
        finally:
            if isinstance(self.target, Uri):
                file.unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> Manifest:
        """Commit the checkpoint with the files of a manifest, which is returned signed where this process signs.

        Raises:
            StorageError: the store refuses, or does not hold what was written.
        """
        if isinstance(self.target, Path):
            deadline = time.monotonic() + APPEARANCE_S
            while damages := find_damage(self.path, manifest, deep=False):
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"A file does not appear in {self.path}, though a rank wrote it: {damages[0]}.",
                        kept="the earlier checkpoints",
                        next_step="keep checkpoints where all machines see the same files (checkpoint.directory)",
                    )
                time.sleep(1.0)
            return commit_manifest(self.path, self.target, manifest)
        remote = Remote.open(self.target)
        remote.remove(remote.sizes().keys() - {entry.path for entry in manifest.files})
        manifest = signed(manifest, lambda entry: remote.sha256(entry.path))
        remote.commit(manifest)
        shutil.rmtree(self.path, ignore_errors=True)
        return manifest

    def discard(self) -> None:
        """Delete everything of this save."""
        shutil.rmtree(self.path, ignore_errors=True)
        if isinstance(self.target, Uri):
            Remote.open(self.target).remove_all()
