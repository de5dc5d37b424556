"""Parquet: columns of any text type, parts of row groups, and files that are damaged."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, SourceFile
from data_prep.sources.parquet import ParquetConfig

TEXTS = [f"Text {number} – é\n" + "word " * 40 + "end" for number in range(50)]
TABLE = pa.table(
    {
        "text": TEXTS,
        "id": list(range(50)),
        "info": [{"title": f"T{number}", "lang": "ro"} for number in range(50)],
        "unused": [b"x" * 100] * 50,
    }
)


def config(tmp_path, **changes) -> ParquetConfig:
    return ParquetConfig(name="pq", paths=(f"{tmp_path}/*.parquet",), **changes)


def write(tmp_path, table: pa.Table = TABLE, **options) -> SourceFile:
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, **({"row_group_size": 8, "write_page_checksum": True} | options))
    return SourceFile(str(path), "data.parquet")


def read(
    file: SourceFile, start: int = 0, end: int | None = None, **changes
) -> list[Document | Reject | Skipped]:
    settings = config("unused", **changes)
    return list(settings.read(FilePart(file, start, end)))


def texts(results: list[Document | Reject | Skipped]) -> list[str]:
    return [item.text for item in results if isinstance(item, Document)]


def test_columns_are_found_by_dotted_names(tmp_path):
    documents = read(write(tmp_path), id_field="id", title_field="info.title", lang_field="info.lang")
    assert [
        (item.doc_id, item.title, item.lang, item.text) for item in documents if isinstance(item, Document)
    ] == [(f"pq:{number}", f"T{number}", "ro", text) for number, text in enumerate(TEXTS)]


def test_without_an_id_file_and_row_name_the_document(tmp_path):
    documents = read(write(tmp_path))
    assert [item.doc_id for item in documents if isinstance(item, Document)] == [
        f"pq:data.parquet:{number}" for number in range(50)
    ]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
)
def test_every_type_that_holds_text_is_read(tmp_path, kind):
    table = pa.table({"text": pa.array(TEXTS).cast(kind)})
    assert texts(read(write(tmp_path, table))) == TEXTS


def test_splitting_gives_whole_row_groups_of_about_the_size_asked_for(tmp_path):
    file = write(tmp_path, compression="none")
    size = (tmp_path / "data.parquet").stat().st_size
    settings = config(tmp_path)
    assert len(settings.split_file(file, size, 1)) == 7
    assert len(settings.split_file(file, size, size // 2)) in (2, 3)
    assert len(settings.split_file(file, size, size)) == 1
    for part_bytes in (1, size // 2):
        parts = settings.split_file(file, size, part_bytes)
        assert all(list(settings.read(part)) for part in parts)
        assert texts([item for part in parts for item in settings.read(part)]) == TEXTS


def test_rows_without_text_are_skipped_and_counted(tmp_path):
    first, null, empty, last = read(write(tmp_path, pa.table({"text": ["a", None, "", "b"]})))
    assert null == empty == Skipped("no_text")
    assert texts([first, last]) == ["a", "b"]


def test_invalid_utf8_rejects_its_row_only(tmp_path):
    raw = pa.array([b"good", b"bad \xff", b"fine"])
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    for field, columns in (
        ("text", table),
        ("info.text", pa.table({"info": pa.StructArray.from_arrays([*table["text"].chunks], ["text"])})),
    ):
        first, reject, last = read(write(tmp_path, columns, row_group_size=1), text_field=field)
        assert texts([first, last]) == ["good", "fine"]
        assert isinstance(reject, Reject)
        assert reject.uri == "data.parquet"
        assert reject.reason == f"row group 1, row 1: invalid UTF-8 in field {field!r}, at its byte 4"


def test_a_file_without_the_column_of_texts_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match="no column 'body'; there are text, id, info, unused"):
        read(write(tmp_path), text_field="body")


@pytest.mark.parametrize("setting", ["text_field", "id_field", "title_field", "lang_field"])
def test_a_setting_that_names_a_column_of_no_file_is_refused_before_anything_is_read(tmp_path, setting):
    write(tmp_path)
    settings: dict[str, Any] = {setting: "info.titel"}
    with pytest.raises(ConfigError, match=r"no column 'info\.titel'"):
        config(tmp_path, **settings).list_files()


def test_a_file_without_optional_columns_is_read_like_json_without_them(tmp_path):
    settings: dict[str, Any] = {"id_field": "id", "title_field": "info.title", "lang_field": "info.lang"}
    pq.write_table(TABLE, tmp_path / "a.parquet")
    write(tmp_path, pa.table({"text": TEXTS, "info": [{"title": "T"}] * 50}))
    files = config(tmp_path, **settings).list_files()
    first, *_ = read(files[1], **settings)
    assert isinstance(first, Document)
    assert (first.doc_id, first.title, first.lang) == ("pq:data.parquet:0", "T", "en")


def test_a_field_of_a_record_that_is_always_null_is_null(tmp_path):
    table = pa.table({"info": pa.nulls(2)})
    assert read(write(tmp_path, table), text_field="info.text") == [Skipped("no_text")] * 2


def test_a_list_of_records_is_no_record(tmp_path):
    with pytest.raises(ConfigError):
        read(write(tmp_path, pa.table({"m": [[{"text": "a"}]]})), text_field="m.text")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\0" * 100, b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_one_reject_and_one_part(tmp_path, data):
    (tmp_path / "data.parquet").write_bytes(data)
    file = SourceFile(str(tmp_path / "data.parquet"), "data.parquet")
    (reject,) = read(file)
    assert isinstance(reject, Reject)
    assert "not a readable Parquet file" in reject.reason
    assert config(tmp_path).split_file(file, 100, 10) == [FilePart(file)]


def test_a_truncated_file_is_one_reject(tmp_path):
    file = write(tmp_path)
    data = (tmp_path / "data.parquet").read_bytes()
    (tmp_path / "data.parquet").write_bytes(data[: len(data) // 2])
    assert [type(item) for item in read(file)] == [Reject]


def test_a_damaged_row_group_costs_only_itself(tmp_path):
    file = write(tmp_path, compression="zstd", use_dictionary=False, write_statistics=False)
    data = bytearray((tmp_path / "data.parquet").read_bytes())
    chunk = pq.ParquetFile(file.path).metadata.row_group(2).column(0)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "data.parquet").write_bytes(data)
    results = read(file)
    assert texts(results) == TEXTS[:16] + TEXTS[24:]
    (bad,) = [item for item in results if isinstance(item, Reject)]
    assert "row group 2 is damaged, from row 16 on" in bad.reason
    assert bad.byte_offset <= middle


@given(cuts=st.lists(st.integers(1, 20_000), max_size=5, unique=True).map(sorted))
def test_parts_that_begin_at_any_byte_read_together_as_the_file_does(tmp_path_factory, cuts):
    file = write(tmp_path_factory.getbasetemp())
    parts = zip([0, *cuts], [*cuts, None], strict=True)
    assert [item for start, end in parts for item in read(file, start, end)] == read(file)
