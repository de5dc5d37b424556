"""Documents on disk, and those of them that are taken down."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError, CorruptArtefactError, MissingInputError
from cluster.artefacts.shard_records import Reject
from cluster.artefacts.storage import commit
from data_prep import documents
from data_prep.document import Document
from data_prep.documents import DocumentStore, DocumentWriter, read_selected
from data_prep.inputs import read_ids
from data_prep.layout import DOCUMENT_FILES
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.sources.base import FilePart, SourceConfig, SourceFile
from data_prep.stages.collect import collect_documents
from data_prep.stages.take_down import leave_out

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
    return DocumentStore.open(directory / "documents")


@given(st.lists(st.builds(Document, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT), max_size=8))
def test_documents_come_back_as_they_were_written(tmp_path_factory, written):
    store = open_store(tmp_path_factory.mktemp("d"), written)
    assert list(store.read_selected(0, Selection.whole(np.arange(len(written))))) == written


def test_columns_are_those_of_the_contract(tmp_path):
    store = open_store(tmp_path, [make(0, byte_start=3)])
    table = pq.read_table(store.file(0))
    assert table.column_names == ["doc_id", "source", "uri", "title", "lang", "text", "meta"]
    assert table["meta"].to_pylist() == ['{"byte_start":3}']


def test_rows_are_read_from_their_row_group_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_DOCUMENTS", 4)
    store = open_store(tmp_path, [make(number) for number in range(11)])
    assert pq.ParquetFile(store.file(0)).num_row_groups == 3
    tables = list(read_selected(store.file(0), ("doc_id",), Selection.whole(np.array([0, 3, 10]))))
    assert [table["doc_id"].to_pylist() for table in tables] == [["d:0", "d:3"], ["d:10"]]


def test_removed_spans_are_missing_from_the_text_that_is_read(tmp_path):
    store = open_store(tmp_path, [make(0, "one\ntwö\nthree"), make(1, "gone"), make(2, "whole")])
    spans = np.array([[4, 9]])
    selection = Selection(np.array([0, 2]), np.array([1, 0]), spans)
    assert [document.text for document in store.read_selected(0, selection)] == ["one\nthree", "whole"]


def test_selection_without_a_column_is_a_damaged_file(tmp_path):
    path = tmp_path / "selection"
    write_selection(path, Selection.whole(np.arange(3)))
    for column in ("row", "removed", "repeats_id"):
        pq.write_table(pq.read_table(path).drop_columns(column), tmp_path / "other")
        with pytest.raises(CorruptArtefactError):
            load_selection(tmp_path / "other")


def test_row_groups_are_closed_by_size_so_that_memory_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_BYTES", 1000)
    store = open_store(tmp_path, [make(number, "x" * 400) for number in range(9)])
    file = pq.ParquetFile(store.file(0))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [3, 3, 3]


def test_the_same_documents_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        with DocumentWriter(tmp_path / name) as writer:
            for number in range(50):
                writer.add(make(number, f"text {number}", b=1, a=[number]))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("broken", [make(1, "\ud800"), make(1, title="\udfff")], ids=["text", "meta"])
def test_text_that_is_no_unicode_becomes_a_reject_and_the_rest_is_kept(tmp_path, broken):
    class Source(SourceConfig):
        def read(self, part):
            yield from [make(0), broken, Reject("file", 9, "bad"), make(2)]

    parts = (FilePart(SourceFile("x", "x")),)
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
    rows, counts = np.array([0, 1, 3, 4]), np.array([1, 1, 0, 2])
    spans = np.array([[0, 4], [4, 8], [0, 3], [8, 13]])
    write_selection(before, Selection(rows, counts, spans))
    made = leave_out(path, before, ("d:1", "d:2", "d:3", "d:30"), after)
    assert (made.rows, made.stats) == (2, {"documents_taken_down": 2}), "d:2 had been dropped before"
    left = load_selection(after)
    assert left.rows.tolist() == [0, 4]
    assert left.span_counts.tolist() == [1, 2]
    assert left.spans.tolist() == [[0, 4], [0, 3], [8, 13]]
