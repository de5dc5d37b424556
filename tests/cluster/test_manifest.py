"""Manifests and fingerprints."""

import errno
import os
import platform
from contextlib import suppress
from typing import Any

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts import manifest as manifests
from cluster.artefacts import reading
from cluster.artefacts.errors import CorruptArtefactError, MismatchError
from cluster.artefacts.manifest import (
    FileEntry,
    InputEntry,
    fingerprint_of,
    hash_file,
    hash_json,
    make_manifest,
    read_manifest,
    write_durably,
    write_manifest,
)


def make(**changes):
    settings = {
        "config": {"b": 1, "a": [1.5, "x"]},
        "inputs": [InputEntry(kind="source-file", uri="/one/place", fingerprint="f1")],
        "files": [
            FileEntry(path="b", size_bytes=1, xxh3_128="h2"),
            FileEntry(path="a", size_bytes=1, xxh3_128="h1"),
        ],
        "stats": {"rows": 3},
    } | changes
    return make_manifest("kind", **settings)


def test_fingerprint_does_not_depend_on_time_host_place_or_statistics(monkeypatch):
    first = make()
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(manifests, "cloze_version", lambda: "99")
    moved = [InputEntry(kind="source-file", uri="s3://other/place", fingerprint="f1")]
    second = make(inputs=moved, stats={"seconds": 12})
    assert second.created_by != first.created_by
    assert second.fingerprint == first.fingerprint


def test_fingerprint_does_not_depend_on_the_order_of_keys_or_files():
    first = make()
    second = make(config={"a": [1.5, "x"], "b": 1}, files=list(reversed(first.files)))
    assert second.fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"b": 2, "a": [1.5, "x"]}},
        {"inputs": [InputEntry(kind="source-file", uri="/one/place", fingerprint="f2")]},
        {"files": [FileEntry(path="a", size_bytes=1, xxh3_128="h1")]},
    ],
    ids=["config", "inputs", "files"],
)
def test_fingerprint_changes_with_whatever_determines_the_content(change):
    assert make(**change).fingerprint != make().fingerprint


def test_fingerprint_depends_on_the_order_of_inputs():
    inputs = [InputEntry(kind="k", uri="u", fingerprint=name) for name in "ab"]
    assert fingerprint_of("k", {}, inputs, []) != fingerprint_of("k", {}, inputs[::-1], [])


def test_manifest_comes_back_as_it_was_written(tmp_path):
    write_manifest(tmp_path, make())
    assert read_manifest(tmp_path) == make().model_copy(
        update={"created_by": read_manifest(tmp_path).created_by}
    )


@pytest.mark.parametrize("key", ["config", "inputs", "files", "fingerprint", "kind", "stats"])
def test_altered_manifest_is_detected(tmp_path, key):
    write_manifest(tmp_path, make())
    path = tmp_path / "manifest.json"
    plain = orjson.loads(path.read_bytes())
    plain[key] = {"b": 2} if key == "config" else [] if isinstance(plain[key], list) else "other"
    path.write_bytes(orjson.dumps(plain))
    with pytest.raises(CorruptArtefactError, match="altered"):
        read_manifest(tmp_path)


@given(st.data())
def test_any_flipped_bit_of_a_manifest_is_noticed_or_harmless(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("flipped")
    first = make()
    write_manifest(directory, first)
    path = directory / "manifest.json"
    good = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    path.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :])
    with suppress(CorruptArtefactError):
        assert read_manifest(directory) == first


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"kind": 3}'])
def test_unreadable_manifest_is_damage(tmp_path, data):
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_missing_manifest_says_that_nothing_was_committed(tmp_path):
    with pytest.raises(CorruptArtefactError, match="not a committed artefact"):
        read_manifest(tmp_path)


def test_file_in_the_place_of_a_directory_is_no_artefact(tmp_path):
    (tmp_path / "rows.csv").touch()
    with pytest.raises(CorruptArtefactError, match=r"rows\.csv is not a committed artefact"):
        read_manifest(tmp_path / "rows.csv")


def test_manifest_of_a_newer_cloze_asks_for_an_upgrade(tmp_path):
    newer = make().model_dump(mode="json") | {"schema_version": 99, "new_field": 1}
    (tmp_path / "manifest.json").write_bytes(orjson.dumps(manifests.seal(newer)))
    with pytest.raises(MismatchError, match="schema version 99") as raised:
        read_manifest(tmp_path)
    assert raised.value.next_step == "upgrade cloze"


@given(st.dictionaries(st.text(max_size=5), st.integers(-(2**53), 2**53) | st.text(max_size=5), max_size=6))
def test_json_hash_does_not_depend_on_key_order(value):
    assert hash_json(dict(reversed(value.items()))) == hash_json(value)


def test_file_hash_is_xxh3_128_of_all_bytes(tmp_path):
    data = bytes(range(256)) * 3000
    (tmp_path / "file").write_bytes(data)
    assert hash_file(tmp_path / "file") == (xxhash.xxh3_128_hexdigest(data), len(data))


def test_durable_write_leaves_the_old_bytes_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifests.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_manifest_that_another_machine_replaces_is_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_STALE_S", (0.0, 0.0))
    path, open_file, stale = tmp_path / "file", os.open, [True, True]
    path.write_bytes(b"new")

    def open_stale(*arguments: Any) -> int:
        if stale and stale.pop():
            raise OSError(errno.ESTALE, "Stale file handle")
        return open_file(*arguments)

    monkeypatch.setattr(os, "open", open_stale)
    assert reading.read_bytes(path) == b"new"
