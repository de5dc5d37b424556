"""What may not be read is told as such: it is neither missing nor damaged, and nothing waits for a FIFO."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cluster.artefacts.errors import ClozeError, StorageError
from cluster.artefacts.manifest import MANIFEST_NAME, hash_file, read_manifest
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.artefacts.storage import contents_of, find_damage, storage_errors
from data_prep.selection import load_selection
from data_prep.token_files import TokenFile
from data_prep.token_store import TokenStore
from data_prep.verify import verify_preparation
from pipeline import cli
from tests.cluster.materials import make as made


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], Any]):
    make(tmp_path / MANIFEST_NAME)
    (tmp_path / "shard-records").mkdir()
    make(tmp_path / "shard-records/a.json")
    for read in (hash_file, read_bytes):
        with pytest.raises(StorageError):
            read(tmp_path / MANIFEST_NAME)
    with pytest.raises(StorageError):
        SHARD_RECORDS.read_all(tmp_path)
    for look in (read_manifest, verify_preparation, TokenStore.open):
        with pytest.raises(ClozeError):
            look(tmp_path)


def test_a_file_that_may_not_be_read_is_not_told_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    artefact = made(tmp_path / "artefact", {"data": b"tokens"})
    manifest = read_manifest(artefact)

    def refuse(path: Any, *_: Any, **__: Any) -> Any:
        # As for a user who is not root.
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(pa, "memory_map", refuse)
    monkeypatch.setattr("data_prep.selection.pq.read_table", refuse)
    for read in (
        lambda: read_manifest(artefact),
        lambda: find_damage(artefact, manifest),
        lambda: TokenFile(artefact / "data"),
        lambda: load_selection(artefact / "data"),
    ):
        with pytest.raises(StorageError):
            read()
    with pytest.raises(StorageError), contents_of(artefact):
        refuse(artefact)
    # Too little memory is no damage of the file.
    with pytest.raises(MemoryError), contents_of(artefact):
        raise MemoryError


@pytest.mark.parametrize("place", ["file/out", "file", "/proc/out"])
def test_a_place_that_cannot_be_a_directory_ends_a_verb_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    (tmp_path / "file").touch()

    def make_directory() -> None:
        with storage_errors(tmp_path / place):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("pipeline.commands.verbs.app", make_directory)
    assert cli.run_verb() == StorageError.exit_code


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert cli.run_verb() == 11
