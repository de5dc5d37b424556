"""Manifests, fingerprints, and artefact directories: committed whole or not at all; verified files are not read again
unless they changed."""

import errno
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts import manifest as manifests
from cluster.artefacts import reading, seals, storage
from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError, StorageError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    hash_file,
    make_manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    seal,
    write_durably,
    write_manifest,
)
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import (
    commit,
    find_damage,
    hash_tree,
    is_committed,
    open_artefact,
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

    with monkeypatch.context() as patch, suppress(Killed):
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


def test_refusals_of_the_file_system_say_what_to_do_and_other_errors_are_not_disguised(tmp_path: Path):
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        with pytest.raises(StorageError, match="/full/disk") as raised, storage_errors(tmp_path):
            raise OSError(number, os.strerror(number), "/full/disk")
        assert raised.value.next_step
    with pytest.raises(BlockingIOError), storage_errors(tmp_path):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_slow_files_are_read_in_order_and_none_is_left_out():
    def read(item: int) -> int:
        time.sleep(0.03)
        if item == 50:
            raise OSError(errno.EIO, "unreadable")
        return item

    assert reading.for_files(read, range(40)) == list(range(40))
    with pytest.raises(OSError, match="unreadable"):
        reading.for_files(read, range(60))


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


INPUTS = [InputEntry(kind="source-file", uri="/one/place", fingerprint=name) for name in ("f1", "f2")]


def manifest_of(**changes: Any) -> Manifest:
    files = [FileEntry(path=name, size_bytes=1, xxh3_128=f"h{name}") for name in "ba"]
    settings: Any = {
        "config": {"b": 1, "a": [1.5, "x"]},
        "inputs": INPUTS,
        "files": files,
        "stats": {"rows": 3},
    }
    return make_manifest("kind", **settings | changes)


def test_fingerprint_depends_on_all_that_determines_the_content_and_on_nothing_else(monkeypatch):
    first = manifest_of()
    for change in (
        {"config": {"b": 2, "a": [1.5, "x"]}},
        {"inputs": INPUTS[:1]},
        {"inputs": INPUTS[::-1]},
        {"files": first.files[:1]},
    ):
        assert manifest_of(**change).fingerprint != first.fingerprint
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(manifests, "cloze_version", lambda: "99")
    moved = [InputEntry(kind=one.kind, uri="s3://other/place", fingerprint=one.fingerprint) for one in INPUTS]
    config = {"a": [1.5, "x"], "b": 1}
    second = manifest_of(config=config, files=first.files[::-1], inputs=moved, stats={"seconds": 12})
    assert second.created_by != first.created_by
    assert second.fingerprint == first.fingerprint


def test_a_manifest_has_the_bytes_of_orjson_and_comes_back(tmp_path: Path):
    manifest = manifest_of()
    write_manifest(tmp_path, manifest)
    plain = manifest.model_dump(mode="json", exclude={"signature"})
    checksum = xxhash.xxh3_128_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    expected = orjson.dumps(plain | {"checksum": checksum}, option=orjson.OPT_INDENT_2)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == manifest_bytes(manifest) == expected
    assert read_manifest(tmp_path) == manifest


@given(st.data())
def test_any_flipped_bit_of_a_manifest_is_noticed_or_harmless(data: Any):
    first = manifest_of()
    damaged = bytearray(manifest_bytes(first))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(CorruptArtefactError):
        assert parse_manifest(bytes(damaged), "m") == first


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        # As an older or hostile program wrote them, with checksums that fit.
        (
            lambda plain: plain["inputs"][1].update(fingerprint=3),
            CorruptArtefactError,
            r"inputs\.1\.fingerprint",
        ),
        (lambda plain: plain.update(kind="tokens\x1b[2J"), CorruptArtefactError, "not printable"),
        (lambda plain: plain.update(config={"b": 2}), CorruptArtefactError, "states fingerprint"),
        (lambda plain: plain.update(schema_version=99, new_field=1), MismatchError, "schema version 99"),
    ],
    ids=["input", "control", "other settings", "newer"],
)
def test_what_is_wrong_with_a_sealed_manifest_is_named(change, error, named):
    plain = manifest_of().model_dump(mode="json", exclude={"signature"})
    change(plain)
    with pytest.raises(error, match=named):
        parse_manifest(orjson.dumps(seal(plain), option=orjson.OPT_INDENT_2), "m")


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b"\xff", b'{"kind": 3}'])
def test_missing_and_unreadable_manifests_are_damage(tmp_path: Path, data: bytes | None):
    if data is not None:
        (tmp_path / MANIFEST_NAME).write_bytes(data)
    (tmp_path / "rows.csv").touch()
    for place in (tmp_path, tmp_path / "rows.csv"):
        with pytest.raises(CorruptArtefactError, match=place.name):
            read_manifest(place)


def test_file_hash_is_xxh3_128_of_all_bytes(tmp_path):
    data = bytes(range(256)) * 3000
    (tmp_path / "file").write_bytes(data)
    assert hash_file(tmp_path / "file") == (xxhash.xxh3_128_hexdigest(data), len(data))


def test_durable_write_leaves_the_old_bytes_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_manifest_that_another_machine_replaces_is_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "STALE_S", (0.0, 0.0))
    path = tmp_path / "file"
    path.write_bytes(b"new")
    stale = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(os, "open", Mock(side_effect=[stale, stale, os.open(path, os.O_RDONLY)]))
    assert reading.read_bytes(path) == b"new"


def test_inputs_hold_no_credentials():
    (entry,) = manifest_of(
        inputs=[InputEntry(kind="k", uri="s3://user:secret@store/a", fingerprint="1")]
    ).inputs
    assert entry.uri == "s3://store/a"
