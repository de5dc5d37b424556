"""Manifests and fingerprints."""

import errno
import os
import platform
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
from cluster.artefacts import reading
from cluster.artefacts.errors import CorruptArtefactError, MismatchError
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

INPUTS = [InputEntry(kind="source-file", uri="/one/place", fingerprint=name) for name in ("f1", "f2")]


def make(**changes: Any) -> Manifest:
    files = [FileEntry(path=name, size_bytes=1, xxh3_128=f"h{name}") for name in "ba"]
    settings: Any = {
        "config": {"b": 1, "a": [1.5, "x"]},
        "inputs": INPUTS,
        "files": files,
        "stats": {"rows": 3},
    }
    return make_manifest("kind", **settings | changes)


def test_fingerprint_depends_on_all_that_determines_the_content_and_on_nothing_else(monkeypatch):
    first = make()
    for change in (
        {"config": {"b": 2, "a": [1.5, "x"]}},
        {"inputs": INPUTS[:1]},
        {"inputs": INPUTS[::-1]},
        {"files": first.files[:1]},
    ):
        assert make(**change).fingerprint != first.fingerprint
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(manifests, "cloze_version", lambda: "99")
    moved = [InputEntry(kind=one.kind, uri="s3://other/place", fingerprint=one.fingerprint) for one in INPUTS]
    config = {"a": [1.5, "x"], "b": 1}
    second = make(config=config, files=first.files[::-1], inputs=moved, stats={"seconds": 12})
    assert second.created_by != first.created_by
    assert second.fingerprint == first.fingerprint


def test_a_manifest_has_the_bytes_of_orjson_and_comes_back(tmp_path: Path):
    manifest = make()
    write_manifest(tmp_path, manifest)
    plain = manifest.model_dump(mode="json", exclude={"signature"})
    checksum = xxhash.xxh3_128_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    expected = orjson.dumps(plain | {"checksum": checksum}, option=orjson.OPT_INDENT_2)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == manifest_bytes(manifest) == expected
    assert read_manifest(tmp_path) == manifest


@given(st.data())
def test_any_flipped_bit_of_a_manifest_is_noticed_or_harmless(data: Any):
    first = make()
    damaged = bytearray(manifest_bytes(first))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(CorruptArtefactError):
        assert parse_manifest(bytes(damaged), "m") == first


@pytest.mark.parametrize("change", [*({key: "other"} for key in make().model_dump()), {"config": {"b": 2}}])
def test_an_altered_manifest_is_noticed(change: dict[str, Any]):
    plain = orjson.loads(manifest_bytes(make()))
    with pytest.raises((CorruptArtefactError, MismatchError)):
        parse_manifest(orjson.dumps(plain | change), "m")


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
        (lambda plain: plain.update(schema_version=99, new_field=1), MismatchError, "schema version 99"),
    ],
    ids=["input", "control", "newer"],
)
def test_what_is_wrong_with_a_sealed_manifest_is_named(change, error, named):
    plain = make().model_dump(mode="json", exclude={"signature"})
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
    (entry,) = make(inputs=[InputEntry(kind="k", uri="s3://user:secret@store/a", fingerprint="1")]).inputs
    assert entry.uri == "s3://store/a"
