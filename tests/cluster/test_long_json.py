"""Long arrays in JSON: written, hashed and read a batch at a time, and nothing else about them differs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.artefacts.entries import InputEntries, InputEntry
from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.long_json import Rows, canonical_pieces, cut_array, hash_json, indented_pieces
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
from cluster.artefacts.packed_strings import PackedStrings

NUM_INPUTS = 40_000
"""So many that a manifest is read in pieces."""
VALUES = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), st.lists(VALUES, max_size=3) | VALUES, max_size=4)


def long(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Rows(value.copy) if isinstance(value, list) else value for name, value in contents.items()}


@settings(deadline=None)
@given(OBJECTS)
def test_pieces_are_together_the_json_of_the_whole(value: dict[str, Any]):
    assert b"".join(canonical_pieces(long(value))) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    assert b"".join(indented_pieces(long(value))) == orjson.dumps(value, option=orjson.OPT_INDENT_2)
    listed = list(value.values())
    pieces = canonical_pieces(list(long(value).values()))
    assert b"".join(pieces) == orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)


@settings(deadline=None)
@given(OBJECTS, st.lists(OBJECTS.filter(bool), min_size=1, max_size=5), OBJECTS)
def test_an_array_that_is_cut_out_comes_back(
    before: dict[str, Any], members: list[Any], after: dict[str, Any]
):
    value = before | after | {"long": members}
    found = cut_array(orjson.dumps(value, option=orjson.OPT_INDENT_2), "long")
    assert found is not None
    rest, array = found
    assert orjson.loads(rest) == value | {"long": None}
    assert list(array.members()) == members


def test_long_arrays_are_parsed_some_at_a_time():
    members = [{"number": number, "text": "}," * number} for number in range(3000)]
    found = cut_array(b"".join(indented_pieces({"long": Rows(lambda: members)})), "long")
    assert found is not None
    batches = list(found[1].batches())
    assert len(batches) > 2
    assert [member for batch in batches for member in batch] == members


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


@pytest.mark.parametrize("layout", [orjson.OPT_INDENT_2, 0])
def test_a_manifest_of_many_inputs_is_read_in_whatever_layout(layout: int):
    plain = seal(manifest().model_dump(mode="json", exclude={"signature"}))
    assert parse_manifest(orjson.dumps(plain, option=layout), "m") == manifest().model_copy(
        update={"created_by": parse_manifest(orjson.dumps(plain), "m").created_by}
    )


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


@settings(deadline=None)
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


def test_a_hash_does_not_depend_on_how_an_array_is_given():
    assert hash_json(["a", Rows(lambda: iter([[1], [2]]))]) == hash_json(["a", [[1], [2]]])
