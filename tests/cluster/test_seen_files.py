"""Verified files are not read again unless they changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.artefacts import seen_files, storage
from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import hash_file
from cluster.artefacts.seen_files import SeenFiles
from cluster.artefacts.storage import commit, open_artefact

CONTENTS = {"a.bin": b"a" * 1000, "sub/b.bin": b"b" * 10}


@pytest.fixture
def artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(seen_files, "_SETTLED_NS", 0)
    for name, contents in CONTENTS.items():
        path = tmp_path / "staging" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    commit(tmp_path / "staging", tmp_path / "artefact", "test", config={})
    return tmp_path / "artefact"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read to be hashed."""
    names: list[str] = []

    def noted(path: Path) -> tuple[str, int]:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(storage, "hash_file", noted)
    return names


def test_what_was_verified_is_not_read_again(artefact: Path, tmp_path: Path, hashed: list[str]):
    seen = SeenFiles()
    open_artefact(artefact, seen=seen)
    assert sorted(hashed) == ["a.bin", "b.bin"]
    seen.write(tmp_path / "seen.json")
    hashed.clear()
    open_artefact(artefact, seen=SeenFiles.read(tmp_path / "seen.json"))
    assert hashed == []
    open_artefact(artefact)
    assert sorted(hashed) == ["a.bin", "b.bin"]


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"?")


def overwrite_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"?" + path.read_bytes()[1:])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [overwrite, overwrite_and_set_the_time_back, replace])
def test_a_file_that_was_touched_is_read_again(
    artefact: Path, hashed: list[str], change: Callable[[Path], None]
):
    seen = SeenFiles()
    open_artefact(artefact, seen=seen)
    hashed.clear()
    change(artefact / "a.bin")
    with pytest.raises(CorruptArtefactError, match=r"a\.bin: xxh3_128"):
        open_artefact(artefact, seen=seen)
    assert hashed == ["a.bin"]


def test_a_file_that_was_changed_just_now_may_change_again_unseen(
    artefact: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(seen_files, "_SETTLED_NS", 3_600_000_000_000)
    seen = SeenFiles()
    for _ in range(2):
        hashed.clear()
        open_artefact(artefact, seen=seen)
        assert sorted(hashed) == ["a.bin", "b.bin"]


def test_a_list_that_is_damaged_or_cannot_be_written_says_nothing(artefact: Path, tmp_path: Path):
    seen = SeenFiles()
    open_artefact(artefact, seen=seen)
    seen.write(tmp_path / "nowhere" / "seen.json")
    seen.write(tmp_path / "seen.json")
    contents = (tmp_path / "seen.json").read_bytes()
    digest = hash_file(artefact / "a.bin")[0]
    assert SeenFiles.read(tmp_path / "seen.json").has(artefact / "a.bin", digest)
    for damaged in (contents[:-5], contents.replace(b"1000", b"1001"), b"[]", b""):
        (tmp_path / "seen.json").write_bytes(damaged)
        assert not SeenFiles.read(tmp_path / "seen.json").has(artefact / "a.bin", digest)
