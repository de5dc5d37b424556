"""Artefact directories: committed whole or not at all; verified files are not read again unless they changed."""

import contextlib
import errno
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from cluster.artefacts import seals, storage
from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, StorageError
from cluster.artefacts.manifest import hash_file
from cluster.artefacts.reading import for_files
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import (
    Damage,
    commit,
    find_damage,
    hash_tree,
    is_committed,
    open_artefact,
    quarantine,
    staging_directory,
    storage_errors,
)
from tests.cluster.materials import make, stage


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "artefact"


def test_committed_artefact_opens_as_its_kind_and_lists_every_file(directory: Path):
    staging = stage(directory, {"a": b"1", "sub/b": b"22"})
    manifest = commit(staging, directory, "kind", config={})
    assert [(entry.path, entry.size_bytes) for entry in manifest.files] == [("a", 1), ("sub/b", 2)]
    assert open_artefact(directory, kind="kind") == manifest
    assert hash_tree(directory) == list(manifest.files)
    assert not staging.exists()
    assert staging_directory(directory, "a" * 20) != staging_directory(directory, "b" * 20)
    with pytest.raises(MissingInputError, match=r"`kind`.*`tokens`"):
        open_artefact(directory, kind="tokens")


@pytest.mark.parametrize("step", [(storage, "write_manifest"), (os, "fsync")])
def test_failed_commit_leaves_the_old_artefact_and_the_staged_work(directory: Path, monkeypatch, step):
    old = open_artefact(make(directory, {"a": b"old"}))
    staging = stage(directory, {"a": b"new"})
    with monkeypatch.context() as patch:
        patch.setattr(*step, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(StorageError):
            commit(staging, directory, "kind", config={})
    assert open_artefact(directory) == old
    assert (staging / "a").read_text() == "new"
    commit(staging, directory, "kind", config={})
    assert (directory / "a").read_text() == "new"
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


@pytest.mark.parametrize("killed_at", range(1, 6))
def test_killed_at_any_rename_no_half_written_artefact_is_ever_read(directory, monkeypatch, killed_at):
    make(directory, {"a": b"old"})
    staging = stage(directory, {"a": b"new", "b": b"more"})

    class Killed(BaseException):
        pass

    replace, calls = os.replace, []

    def replace_or_die(source, target):
        calls.append(target)
        if len(calls) == killed_at:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(os, "replace", replace_or_die)
        commit(staging, directory, "kind", config={})
    if is_committed(directory):
        open_artefact(directory)
    else:
        # Between the two renames the work is complete in the staging directory.
        open_artefact(staging)
        commit(staging, directory, "kind", config={})
    assert (directory / "a").read_text() in ("old", "new")


def test_directory_of_the_user_is_set_aside_not_deleted(directory: Path, tmp_path: Path):
    directory.mkdir()
    (directory / "thesis.txt").write_text("precious")
    make(directory)
    assert (tmp_path / "artefact.uncommitted" / "thesis.txt").read_text() == "precious"


def test_every_kind_of_damage_is_found_and_named(directory: Path):
    names = ("flipped", "short", "gone", "good")
    manifest = open_artefact(make(directory, dict.fromkeys(names, b"1234")))
    (directory / "flipped").write_text("1235")
    (directory / "short").write_text("123")
    (directory / "gone").unlink()
    assert {damage.path for damage in find_damage(directory, manifest)} == {"flipped", "short", "gone"}
    assert {damage.path for damage in find_damage(directory, manifest, deep=False)} == {"short", "gone"}
    with pytest.raises(CorruptArtefactError) as raised:
        open_artefact(directory, repair="cloze repair")
    told = ("flipped: xxh3_128", "short: 3 bytes instead of 4", "gone: missing", "1 of 4", "cloze repair")
    assert [each for each in told if each not in str(raised.value)] == []


def test_quarantined_files_never_overwrite_each_other(directory: Path):
    make(directory, {"a": b"1"})
    first = quarantine(directory, Damage("a", "flipped"))
    (directory / "a").write_text("2")
    second = quarantine(directory, Damage("a", "flipped"))
    assert [path and path.read_text() for path in (first, second)] == ["1", "2"]
    assert quarantine(directory, Damage("a", "missing")) is None


def test_refusals_of_the_file_system_say_what_to_do_and_other_errors_are_not_disguised(tmp_path: Path):
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR):
        with pytest.raises(StorageError, match="/full/disk") as raised, storage_errors(tmp_path):
            raise OSError(number, os.strerror(number), "/full/disk")
        assert raised.value.next_step
    with pytest.raises(BlockingIOError), storage_errors(tmp_path):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("pause_s", [0, 0.03])
def test_files_are_read_in_order_and_an_error_of_one_is_raised_in_one_thread_or_several(pause_s: float):
    def read(item: int) -> int:
        time.sleep(pause_s)
        if item == 50:
            raise OSError(errno.EIO, "unreadable")
        return item

    assert for_files(read, []) == []
    assert list(for_files(read, range(40))) == list(range(40))
    with pytest.raises(OSError, match="unreadable"):
        for_files(read, range(60))


@pytest.fixture
def artefact(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(seals, "SETTLED_NS", 0)
    return make(directory, {"a.bin": b"a" * 1000, "sub/b.bin": b"b" * 10})


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
    seen.write(tmp_path / "seen.json")
    assert sorted(hashed) == ["a.bin", "b.bin"]
    open_artefact(artefact, seen=SeenFiles.read(tmp_path / "seen.json"))
    assert sorted(hashed) == ["a.bin", "b.bin"]
    open_artefact(artefact)
    assert sorted(hashed) == ["a.bin", "a.bin", "b.bin", "b.bin"]


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
def test_a_file_that_was_touched_is_read_again(artefact, hashed, change):
    seen = SeenFiles()
    open_artefact(artefact, seen=seen)
    hashed.clear()
    change(artefact / "a.bin")
    with pytest.raises(CorruptArtefactError, match=r"a\.bin"):
        open_artefact(artefact, seen=seen)
    assert hashed == ["a.bin"]


def test_a_file_that_was_changed_just_now_may_change_again_unseen(artefact, hashed, monkeypatch):
    monkeypatch.setattr(seals, "SETTLED_NS", 3_600_000_000_000)
    seen = SeenFiles()
    for _ in range(2):
        open_artefact(artefact, seen=seen)
    assert sorted(hashed) == ["a.bin", "a.bin", "b.bin", "b.bin"]


def test_a_list_that_is_damaged_or_cannot_be_written_says_nothing(artefact: Path, tmp_path: Path):
    seen, file = SeenFiles(), tmp_path / "seen.json"
    open_artefact(artefact, seen=seen)
    seen.write(tmp_path / "nowhere" / "seen.json")
    seen.write(file)
    contents, digest = file.read_bytes(), hash_file(artefact / "a.bin")[0]
    assert SeenFiles.read(file).has(artefact / "a.bin", digest)
    for damaged in (contents[:-5], contents.replace(b"1000", b"1001"), b"[]", b""):
        file.write_bytes(damaged)
        assert not SeenFiles.read(file).has(artefact / "a.bin", digest)
