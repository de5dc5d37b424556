"""Manifests and fingerprints."""

import errno
import os
import platform
from contextlib import suppress
from pathlib import Path
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
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    hash_file,
    hash_json,
    make_manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    seal,
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


def test_fingerprint_does_not_depend_on_time_host_place_statistics_or_order(monkeypatch):
    first = make()
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(manifests, "cloze_version", lambda: "99")
    moved = [InputEntry(kind="source-file", uri="s3://other/place", fingerprint="f1")]
    second = make(
        config={"a": [1.5, "x"], "b": 1}, files=first.files[::-1], inputs=moved, stats={"seconds": 12}
    )
    assert second.created_by != first.created_by
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
    assert make(inputs=inputs).fingerprint != make(inputs=inputs[::-1]).fingerprint


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


def test_missing_manifest_and_a_file_in_the_place_of_a_directory_say_that_nothing_was_committed(tmp_path):
    (tmp_path / "rows.csv").touch()
    for place in (tmp_path, tmp_path / "rows.csv"):
        with pytest.raises(CorruptArtefactError, match=place.name):
            read_manifest(place)


def test_manifest_of_a_newer_cloze_asks_for_an_upgrade(tmp_path):
    newer = make().model_dump(mode="json") | {"schema_version": 99, "new_field": 1}
    (tmp_path / "manifest.json").write_bytes(orjson.dumps(manifests.seal(newer)))
    with pytest.raises(MismatchError, match="schema version 99") as raised:
        read_manifest(tmp_path)
    assert raised.value.next_step == "upgrade cloze"


def test_manifest_whose_kind_would_control_a_terminal_is_refused():
    with pytest.raises(CorruptArtefactError, match="not printable"):
        parse_manifest(manifest_bytes(make().model_copy(update={"kind": "tokens\x1b[2J"})), "manifest.json")


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
    monkeypatch.setattr(reading, "STALE_S", (0.0, 0.0))
    path, open_file, stale = tmp_path / "file", os.open, [True, True]
    path.write_bytes(b"new")

    def open_stale(*arguments: Any) -> int:
        if stale and stale.pop():
            raise OSError(errno.ESTALE, "Stale file handle")
        return open_file(*arguments)

    monkeypatch.setattr(os, "open", open_stale)
    assert reading.read_bytes(path) == b"new"


MANY = [InputEntry(kind="tokens", uri="s3://other/tokens", fingerprint="f")] + [
    InputEntry(kind="source-file", uri=f"/texts/ä-{number}.jsonl", fingerprint=f"{number:032x}")
    for number in range(300)
]


@pytest.fixture(scope="module")
def many() -> Manifest:
    """A manifest of many inputs."""
    return make(inputs=MANY)


def test_a_manifest_of_many_inputs_has_the_bytes_of_orjson_and_comes_back(tmp_path: Path, many: Manifest):
    write_manifest(tmp_path, many)
    plain = many.model_dump(mode="json", exclude={"signature"})
    checksum = xxhash.xxh3_128_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    expected = orjson.dumps(plain | {"checksum": checksum}, option=orjson.OPT_INDENT_2)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == manifest_bytes(many) == expected
    found = read_manifest(tmp_path)
    assert found == many
    assert list(found.inputs) == MANY


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"%032x" % 200, b"%032x" % 1),
        (b'-200.jsonl"', b'-200.json"'),
        (b'"uri": "/texts/\xc3\xa4-200', b'"url": "/texts/\xc3\xa4-200'),
        (b"-200.jsonl", b"-200\x00jsonl"),
    ],
)
def test_altered_inputs_are_noticed_among_many(many: Manifest, old: bytes, new: bytes):
    data = manifest_bytes(many)
    assert old in data
    with pytest.raises(CorruptArtefactError):
        parse_manifest(data.replace(old, new), "m")


def test_a_wrong_input_among_many_is_named(many: Manifest):
    plain = many.model_dump(mode="json", exclude={"signature"})
    plain["inputs"][200]["fingerprint"] = 3
    data = orjson.dumps(seal(plain), option=orjson.OPT_INDENT_2)
    with pytest.raises(CorruptArtefactError, match=r"inputs\.200\.fingerprint"):
        parse_manifest(data, "m")


def test_inputs_hold_no_credentials():
    (entry,) = make(inputs=[InputEntry(kind="k", uri="s3://user:secret@store/a", fingerprint="1")]).inputs
    assert entry.uri == "s3://store/a"
