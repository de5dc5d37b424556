"""Documents and tokens on disk: they come back as they were written, under ids of their own; some are taken down."""

import json
import pickle
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from cluster.artefacts.errors import ConfigError, CorruptArtefactError, MissingInputError, TooManyRejectsError
from cluster.artefacts.manifest import hash_file
from cluster.artefacts.storage import commit
from data_prep import documents
from data_prep.config import PreparationConfig
from data_prep.document import Document
from data_prep.documents import DocumentStore, DocumentWriter, read_selected
from data_prep.hashing import hash_strings
from data_prep.inputs import group_inputs, list_inputs, read_ids
from data_prep.layout import DEDUP, DOCUMENT_FILES, TOKEN_FILES
from data_prep.ragged import Ragged
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.sources.base import Gap, SourceConfig, SourceFile
from data_prep.stages.collect import collect, collect_documents
from data_prep.stages.deduplicate import deduplicate
from data_prep.stages.take_down import leave_out
from data_prep.token_store import TokenStore
from data_prep.token_writer import EncodedBatch, token_dtype, write_sidecars, write_token_shard
from data_prep.verify import list_rejects
from data_prep.workspace import Workspace
from tests.data_prep.dedup.corpus import without_ray
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


TEXT = st.text(max_size=40)


def make(number, text="text", **meta):
    return Document(f"d:{number}", "source", "file", f"Title {number}", "en", text, meta)


def open_store(directory, written):
    staging = directory / ".staging"
    staging.mkdir()
    with DocumentWriter(staging / DOCUMENT_FILES.files(1)[0]) as writer:
        for document in written:
            writer.add(document)
    commit(staging, directory / "documents", "documents", config={})
    return DocumentStore(directory / "documents", directory / "dedup")


@given(st.lists(st.builds(Document, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT), max_size=8))
def test_documents_come_back_as_they_were_written_with_the_columns_of_the_contract(tmp_path_factory, written):
    written = [*written, make(0, byte_start=3)]
    store = open_store(tmp_path_factory.mktemp("d"), written)
    assert list(store.read(0, Selection.whole(np.arange(len(written))))) == written
    table = pq.read_table(store.file(0))
    assert table.column_names == ["doc_id", "source", "uri", "title", "lang", "text", "meta"]
    assert table["meta"].to_pylist()[-1] == '{"byte_start":3}'


def test_rows_are_read_from_their_row_group_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_DOCUMENTS", 4)
    store = open_store(tmp_path, [make(number) for number in range(11)])
    assert pq.ParquetFile(store.file(0)).num_row_groups == 3
    tables = list(read_selected(store.file(0), ("doc_id",), Selection.whole(np.array([0, 3, 10]))))
    assert [table["doc_id"].to_pylist() for table in tables] == [["d:0", "d:3"], ["d:10"]]


def test_row_groups_are_closed_by_size_so_that_memory_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_BYTES", 1000)
    file = open_store(tmp_path, [make(number, "x" * 400) for number in range(9)]).file(0)
    assert pq.ParquetFile(file).num_row_groups == 3


def test_removed_spans_are_missing_from_the_text_that_is_read(tmp_path):
    store = open_store(tmp_path, [make(0, "one\ntwö\nthree"), make(1, "gone"), make(2, "whole")])
    spans = np.array([[4, 9]])
    selection = Selection(np.array([0, 2]), Ragged(spans, np.array([0, 1, 1])))
    assert [document.text for document in store.read(0, selection)] == ["one\nthree", "whole"]


def test_selection_without_a_column_is_a_damaged_file(tmp_path):
    path = tmp_path / "selection"
    write_selection(path, Selection.whole(np.arange(3)))
    for column in ("row", "removed", "repeats_id"):
        pq.write_table(pq.read_table(path).drop_columns(column), tmp_path / "other")
        with pytest.raises(CorruptArtefactError):
            load_selection(tmp_path / "other")


@pytest.mark.parametrize("broken", [make(1, "\ud800"), make(1, title="\udfff")], ids=["text", "meta"])
def test_text_that_is_no_unicode_becomes_a_reject_and_the_rest_is_kept(tmp_path, broken):
    class Source(SourceConfig):
        def read(self, part):
            yield from [make(0), broken, Gap(9, "bad"), make(2)]

    parts = (SourceFile("x", "x"),)
    result = collect_documents(Source(kind="x", name="source"), parts, [], 1, tmp_path / "out.parquet")
    assert result.rows == 2
    assert ["d:1" in reject.reason for reject in result.rejects] == [True, False]
    assert pq.read_table(tmp_path / "out.parquet")["doc_id"].to_pylist() == ["d:0", "d:2"]


def test_a_list_of_ids_to_take_down_has_an_id_a_line_and_comments(tmp_path):
    path = tmp_path / "takedown.txt"
    path.write_text("# a court's order\nwiki:2\n\n  wiki:1  \nwiki:2\n   # and a comment\nwiki:#3\n")
    assert read_ids(path) == ("wiki:#3", "wiki:1", "wiki:2")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"takedown\.txt"):
        read_ids(path)
    path.unlink()
    with pytest.raises(MissingInputError):
        read_ids(path)


def test_rows_to_take_down_are_left_out_and_the_others_keep_their_spans(tmp_path):
    path, before, after = (tmp_path / name for name in ("documents.parquet", "before", "after"))
    with DocumentWriter(path) as writer:
        for number in range(5):
            writer.add(make(number, "one two three"))
    spans = Ragged(np.array([[0, 4], [4, 8], [0, 3], [8, 13]]), np.array([0, 1, 2, 2, 4]))
    write_selection(before, Selection(np.array([0, 1, 3, 4]), spans))
    made = leave_out(path, before, ("d:1", "d:2", "d:3", "d:30"), after)
    assert (made.rows, made.stats) == (2, {"documents_taken_down": 2}), "d:2 had been dropped before"
    left = load_selection(after)
    assert left.rows.tolist() == [0, 4]
    assert [own.tolist() for own in left.spans] == [[[0, 4]], [[0, 3], [8, 13]]]


def prepare(directory, files, shard_bytes, **changes):
    """The manifest of the selection, and the names of the kept documents by the bytes of their records."""
    directory.mkdir(exist_ok=True)
    for name, ids in files.items():
        rows = [json.dumps({"id": own, "text": f"{name} text {at}"}) for at, own in enumerate(ids)]
        (directory / name).write_text("\n".join(rows))
    source = {"kind": "json_lines", "name": "s", "paths": [str(directory / "*.jsonl")], "id_field": "id"}
    plain = {"name": "x", "out": directory / f"out-{shard_bytes}", "sources": [source], "min_characters": 1}
    config = PreparationConfig.model_validate(plain | {"shard_bytes": shard_bytes} | changes)
    config.out.mkdir(exist_ok=True)
    inputs = list_inputs(config)
    digests = {own.file.path: hash_file(Path(own.file.path))[0] for own in inputs}
    job = Workspace(config, group_inputs(inputs, shard_bytes), replace=True)
    with without_ray():
        job.documents = collect(job, inputs, digests)
        manifest = deduplicate(job)
    store = DocumentStore(config.out / "documents", config.out / DEDUP)
    documents = [document for shard in range(len(job.shards)) for document in store.read(shard)]
    return manifest, {(each.uri, each.meta["byte_start"]): each.doc_id for each in documents}


REPEATED = st.lists(st.sampled_from([1, "1", "a", "b", "s:1", "1 @ a.jsonl:0", "", 2]), max_size=9)


@given(first=REPEATED, second=REPEATED.filter(bool))
@example(first=[1, 1, "1 @ a.jsonl:43"], second=["1", 2, 2])
def test_every_document_has_an_id_of_its_own_and_the_first_of_equal_ids_is_kept(
    tmp_path_factory, first, second
):
    directory = tmp_path_factory.mktemp("ids")
    files = {"a.jsonl": first, "b.jsonl": second}
    manifest, names = prepare(directory, files, 1 << 20)
    _, shared_out = prepare(directory, files, 40)
    assert shared_out == names
    assert len(set(names.values())) == len(names) == len(first) + len(second)
    given_ids = [str(own) for own in (*first, *second)]
    seen: set[str] = set()
    num_repeated = 0
    for own, ((uri, start), name) in zip(given_ids, sorted(names.items()), strict=True):
        if " @ " in own or own in seen:
            assert name == f"s:{own} @ {uri}:{start}"
        else:
            assert name == (f"s:{own}" if own else f"s:{uri}:{start}")
        num_repeated += own in seen and " @ " not in own
        seen |= {own} - {""}
    assert manifest.stats["repeated_ids"] == manifest.stats["sources"]["s"]["repeated_ids"] == num_repeated


def test_repeated_ids_are_rejected_where_that_is_asked_for(tmp_path):
    files = {"a.jsonl": [1, 2, 1], "b.jsonl": [3, 2]}
    with pytest.raises(TooManyRejectsError, match=r"a\.jsonl.* s:1"):
        prepare(tmp_path, files, 40, repeated_ids="reject")
    manifest, names = prepare(tmp_path, files, 40, repeated_ids="reject", max_rejects=2)
    assert sorted(names.values()) == ["s:1", "s:2", "s:3"]
    assert manifest.stats["repeated_ids"] == manifest.stats["rejects"] == 2
    assert [reject.uri for reject in list_rejects(tmp_path / "out-40")] == ["a.jsonl", "b.jsonl"]


def test_a_selection_keeps_what_repeats_through_all_that_is_done_to_it(tmp_path):
    spans = Ragged(np.array([[0, 2], [5, 7]]), np.array([0, 0, 2, 2]))
    whole = Selection(np.array([1, 4, 6]), spans, repeated_ids=np.array([4, 6]))
    write_selection(tmp_path / "x", whole)
    loaded = load_selection(tmp_path / "x")
    for each in (loaded, loaded.take(np.array([1, 2])), loaded.between(2, 9), loaded.with_whole_texts()):
        assert np.isin(each.rows, each.repeated_ids).tolist()[-2:] == [True, True]
    assert not np.isin(loaded.rows, loaded.repeated_ids)[0]


GOLDEN = 0x9E3779B97F4A7C15


def test_names_of_shards_sort_like_their_numbers_beyond_five_digits_too():
    assert DOCUMENT_FILES.file(99_999, 100_000) == "documents-99999-of-100000.parquet"
    before, after = (DOCUMENT_FILES.file(number, 100_001) for number in (99_999, 100_000))
    assert before < after == "documents-100000-of-100001.parquet"


def test_hashes_are_the_same_on_every_machine():
    hashes = hash_strings(pa.array(["", "a", "wikipedia:12", "Straße"])).tolist()
    assert hashes == [12035550249420947055, 11698956431250217857, 7823835577389093233, 14321367742493233995]


@given(st.lists(st.text(max_size=30), max_size=12), st.integers(0, 2**63), st.integers(0, 3))
def test_hash_is_that_of_its_definition_with_any_salt_and_in_any_slice(ids: list[str], salt: int, start: int):
    chosen = pa.array([*ids, "last"])[start:]
    assert hash_strings(chosen, salt).tolist() == [_defined(own.as_py().encode(), salt) for own in chosen]


def _defined(text: bytes, salt: int) -> int:
    """The hash in unbounded integers."""
    total = sum((byte + 1) * (_mixed(place) | 1) for place, byte in enumerate(text)) + len(text) * GOLDEN
    return _mixed(total % 2**64 ^ _mixed(salt))


def _mixed(value: int) -> int:
    value = (value + GOLDEN) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31
