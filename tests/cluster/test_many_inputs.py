"""Manifests of many inputs, which are kept as columns."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.entries import InputEntries, InputEntry, PackedStrings
from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    make_manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    seal,
    write_manifest,
)

NUM_INPUTS = 40_000
"""So many that they are validated in batches."""


def entries(count: int = NUM_INPUTS) -> list[InputEntry]:
    return [
        InputEntry(kind="source-file", uri=f"/texts/ä-{number}.jsonl", fingerprint=f"{number:032x}")
        for number in range(count)
    ]


def manifest() -> Manifest:
    inputs = [InputEntry(kind="tokens", uri="s3://other/tokens", fingerprint="f"), *entries()]
    files = [FileEntry(path=f"file-{number:05d}", size_bytes=1, xxh3_128="h") for number in range(9)]
    return make_manifest("kind", config={"a": [1]}, inputs=inputs, files=files, stats={"rows": 3})


def test_a_manifest_of_many_inputs_has_the_bytes_of_orjson_and_comes_back(tmp_path: Path):
    written = write_manifest(tmp_path, manifest())
    data = (tmp_path / MANIFEST_NAME).read_bytes()
    plain = written.model_dump(mode="json", exclude={"signature"})
    checksum = xxhash.xxh3_128_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    assert data == orjson.dumps(plain | {"checksum": checksum}, option=orjson.OPT_INDENT_2)
    assert data == manifest_bytes(written)
    found = read_manifest(tmp_path)
    assert found == written
    assert list(found.inputs) == [
        InputEntry(kind="tokens", uri="s3://other/tokens", fingerprint="f"),
        *entries(),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"%032x" % 30_000, b"%032x" % 1),
        (b'-30000.jsonl"', b'-30000.json"'),
        (b'"uri": "/texts/\xc3\xa4-30000', b'"url": "/texts/\xc3\xa4-30000'),
        (b"-30000.jsonl", b"-30000\x00jsonl"),
        (b'  "inputs": [', b'  "inputs": [],\n  "inputs": ['),
    ],
)
def test_altered_inputs_are_noticed_among_many(old: bytes, new: bytes):
    data = manifest_bytes(manifest())
    assert old in data
    if b"inputs" in old:
        # JSON takes the last of equal names, which is the one that was written.
        assert parse_manifest(data.replace(old, new), "m").inputs == manifest().inputs
        return
    with pytest.raises(CorruptArtefactError):
        parse_manifest(data.replace(old, new), "m")


def test_a_wrong_input_among_many_is_named():
    plain = manifest().model_dump(mode="json", exclude={"signature"})
    plain["inputs"][30_000]["fingerprint"] = 3
    data = orjson.dumps(seal(plain), option=orjson.OPT_INDENT_2)
    with pytest.raises(CorruptArtefactError, match=r"inputs\.30000\.fingerprint"):
        parse_manifest(data, "m")


@given(st.lists(st.text()))
def test_packed_strings_are_a_sequence_of_strings(strings: list[str]):
    packed = PackedStrings(strings)
    assert list(packed) == strings
    assert packed == PackedStrings(strings)
    assert len(packed) == len(strings)
    assert packed[1:-1] == strings[1:-1]
    assert [packed[number] for number in range(-len(strings), 0)] == strings
    with pytest.raises(IndexError):
        packed[len(strings)]


def test_packed_strings_hold_names_of_files_that_are_not_utf8():
    assert list(PackedStrings(["a\udcff"])) == ["a\udcff"]


def test_columns_of_inputs_hold_no_credentials():
    uris, hashes = PackedStrings(["s3://user:secret@store/a", "/b"]), PackedStrings(["1", "2"])
    found = InputEntries.of_one_kind("source-file", uris, hashes)
    assert [entry.uri for entry in found] == ["s3://store/a", "/b"]
    assert found == [
        InputEntry(kind="source-file", uri=uri, fingerprint=each)
        for uri, each in zip(uris, "12", strict=True)
    ]
