"""Token shards as they are written and read."""

import pickle
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError
from cluster.artefacts.storage import commit
from data_prep.layout import TOKEN_FILES
from data_prep.ragged import Ragged
from data_prep.token_store import TokenStore
from data_prep.token_writer import EncodedBatch, token_dtype, write_sidecars, write_token_shard
from tests.surroundings import flip_bit

LANGS = ["en", "de"]
SPECIAL = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}


class Row(NamedTuple):
    doc_id: str
    lang: str
    input_ids: list[int]
    sentence_starts: list[int]


def write_store(
    path: Path, shards: list[list[Row]], vocab_size: int = 1000, batch_documents: int = 16
) -> Path:
    staging = path.with_name(".staging")
    staging.mkdir()
    files, dtype = TOKEN_FILES.files(len(shards)), token_dtype(vocab_size)
    for number, (file, rows) in enumerate(zip(files, shards, strict=True)):
        starts = range(0, len(rows), batch_documents)
        batches = [batch_of(rows[start : start + batch_documents]) for start in starts]
        write_token_shard(staging / file, f"source{number}", LANGS, batches, dtype)
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    write_sidecars(staging, files, dtype, tokenizer.to_str().encode())
    commit(staging, path, "tokens", config={"vocab_size": vocab_size, "special_tokens": SPECIAL})
    return path


def batch_of(rows: list[Row]) -> EncodedBatch:
    doc_ids, langs, ids, starts = zip(*rows, strict=True)
    lists = [Ragged.of([np.array(own, dtype=np.int32) for own in each]) for each in (ids, starts)]
    return EncodedBatch(pa.array(doc_ids), pa.array(langs), *lists)


def encoded(doc_id: str, ids: list[int], starts: list[int] | None = None) -> Row:
    starts = ([0] if ids else []) if starts is None else starts
    return Row(doc_id, LANGS[len(ids) % 2], ids, starts)


def numbered(shard: int, count: int) -> list[Row]:
    lengths = [row % 37 for row in range(count)]
    return [
        encoded(f"d:{shard}:{row}", list(range(length)), [0, length // 2] if length > 1 else None)
        for row, length in enumerate(lengths)
    ]


@pytest.fixture
def path(tmp_path):
    return write_store(tmp_path / "tokens", [numbered(0, 40), [], numbered(2, 25)])


IDS = st.lists(st.integers(0, 70_000), max_size=9)


@given(st.lists(st.lists(IDS, max_size=7), min_size=1, max_size=4), st.integers(1, 4))
def test_every_document_comes_back_from_any_layout_of_shards_and_batches(tmp_path_factory, shards, batch):
    rows = [
        [encoded(f"{shard}:{row}", ids) for row, ids in enumerate(documents)]
        for shard, documents in enumerate(shards)
    ]
    store = TokenStore.open(write_store(tmp_path_factory.mktemp("s") / "tokens", rows, 70_001, batch))
    flat = [(f"source{shard}", row) for shard, documents in enumerate(rows) for row in documents]
    assert store.num_documents == len(flat)
    assert store.num_tokens == sum(len(row.input_ids) for _, row in flat)
    assert store.lengths.tolist() == [len(row.input_ids) for _, row in flat]
    (sources, names), (langs, codes) = store.sources(), store.langs()
    for document, (source, row) in enumerate(flat):
        assert store.tokens(document).tolist() == row.input_ids
        assert store.sentence_starts(document).tolist() == row.sentence_starts
        assert store.doc_id(document) == row.doc_id
        assert store.source(document) == names[sources[document]] == source
        assert store.lang(document) == codes[langs[document]] == row.lang


def test_tokens_are_views_of_the_mapped_file_in_two_bytes_as_long_as_the_vocabulary_allows(path):
    tokens = TokenStore.open(path).tokens(30)
    assert tokens.dtype == np.uint16
    assert tokens.base is not None
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    assert [token_dtype(size) for size in (65_536, 65_537)] == [np.uint16, np.uint32]


def test_datasets_opens_the_store_as_it_lies_on_disk_with_the_schema_of_the_contract(path):
    store, loaded = TokenStore.open(path), datasets.load_from_disk(str(path))
    assert len(loaded) == store.num_documents
    for document in range(store.num_documents):
        assert loaded[document] == {
            "doc_id": store.doc_id(document),
            "source": store.source(document),
            "lang": store.lang(document),
            "input_ids": store.tokens(document).tolist(),
            "sentence_starts": store.sentence_starts(document).tolist(),
        }
    name = "dictionary<values=string, indices=int32, ordered=0>"
    with pa.ipc.open_stream(path / TOKEN_FILES.files(3)[0]) as reader:
        assert [(field.name, str(field.type)) for field in reader.schema] == [
            ("doc_id", "string"),
            ("source", name),
            ("lang", name),
            ("input_ids", "list<item: uint16>"),
            ("sentence_starts", "list<item: int32>"),
        ]


def test_held_out_documents_are_the_same_in_every_store_and_every_order(tmp_path):
    rows = [encoded(f"wikipedia:{number}", [1, 2]) for number in range(3000)]
    one = TokenStore.open(write_store(tmp_path / "one", [rows[:1000], rows[1000:]]))
    other = TokenStore.open(write_store(tmp_path / "other", [rows[::-1]]))
    for fraction in (0.01, 0.2):
        chosen = {one.doc_id(n) for n in np.flatnonzero(one.held_out(fraction))}
        assert chosen == {other.doc_id(n) for n in np.flatnonzero(other.held_out(fraction))}
        assert abs(len(chosen) / 3000 - fraction) < 0.03
    assert not (one.held_out(0.01) & ~one.held_out(0.2)).any()
    assert not one.held_out(0.0).any()
    assert one.held_out(1.0).all()


def test_a_store_opens_by_its_preparation_and_pickled_by_its_path(path, tmp_path):
    store = TokenStore.open(path.parent)
    assert store.path == path
    again = pickle.loads(pickle.dumps(store))
    assert again.fingerprint == store.fingerprint
    assert np.array_equal(again.tokens(20), store.tokens(20))


def test_damage_is_named_with_the_command_that_repairs_it(path):
    file = path / TOKEN_FILES.files(3)[2]
    data = flip_bit(file)
    with pytest.raises(CorruptArtefactError, match=file.name) as raised:
        TokenStore.open(path)
    assert "cloze data prepare" in raised.value.next_step
    TokenStore.open(path, verify=False)
    file.write_bytes(data[:100])
    with pytest.raises(CorruptArtefactError, match=file.name):
        TokenStore.open(path, verify=False)


def test_what_is_no_store_is_answered_with_the_right_path_or_how_to_make_one(path, tmp_path):
    for nothing in (tmp_path / "nothing", path.parent / ".."):
        with pytest.raises(MissingInputError) as raised:
            TokenStore.open(nothing)
        assert "cloze data prepare" in raised.value.next_step
    (tmp_path / ".documents").mkdir()
    commit(tmp_path / ".documents", tmp_path / "documents", "documents", config={})
    with pytest.raises(MissingInputError, match="`documents`") as raised:
        TokenStore.open(tmp_path / "documents")
    assert raised.value.next_step == f"name {path}"
