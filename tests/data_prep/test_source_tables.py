"""Parquet and Hugging Face data sets: columns, parts of row groups, layouts on disk, and files that are damaged."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.sources.base import Skipped
from data_prep.sources.hf_datasets import HfDatasetsConfig, name_below
from data_prep.sources.parquet import ParquetConfig
from tests.data_prep import reading

TEXTS = [f"Text {number} – é\n" + "word " * 40 + "end" for number in range(50)]
TABLE = pa.table(
    {"text": TEXTS, "id": range(50), "info": [{"title": f"T{number}", "lang": "ro"} for number in range(50)]}
)
FIELDS = {"id_field": "id", "title_field": "info.title", "lang_field": "info.lang"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.parquet"


def config(path, **settings) -> ParquetConfig:
    return ParquetConfig(name="s", paths=(f"{path.parent}/*.parquet",), **settings)


def read(path, table: pa.Table = TABLE, settings=None, **options) -> reading.Results:
    """Results of a file that holds the table."""
    pq.write_table(table, path, **({"row_group_size": 8, "write_page_checksum": True} | options))
    return reading.read(config(path, **(settings or {})))


def test_columns_are_found_by_dotted_names_and_file_and_row_name_what_has_no_id(path):
    assert [(each.doc_id, each.title, each.lang, each.text) for each in read(path, settings=FIELDS)] == [
        (f"s:{number}", f"T{number}", "ro", text) for number, text in enumerate(TEXTS)
    ]
    assert read(path).ids == [f"s:data.parquet:{number}" for number in range(50)]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
)
def test_every_type_that_holds_text_is_read(path, kind):
    assert read(path, pa.table({"text": pa.array(TEXTS).cast(kind)})).texts == TEXTS


def test_splitting_gives_whole_row_groups_of_about_the_size_asked_for(path):
    whole = read(path, compression="none")
    (file,) = config(path).list_files()
    size = path.stat().st_size
    counts = []
    for part_bytes in (1, size // 2, size):
        parts = config(path).split_file(file, size, part_bytes)
        counts.append(len(parts))
        assert all(list(config(path).read(part)) for part in parts)
        assert reading.read(config(path), part_bytes=part_bytes) == whole
    assert counts in ([7, 2, 1], [7, 3, 1])
    for bounds in ([1], [500, size // 2], range(1, size, 1000)):
        assert reading.read(config(path), bounds) == whole


@pytest.mark.parametrize(
    ("table", "field"),
    [
        (pa.table({"text": [None, "", "b"]}), "text"),
        (pa.table({"info": pa.nulls(2)}), "info.text"),
    ],
)
def test_rows_without_text_are_skipped_and_counted(path, table, field):
    assert read(path, table, {"text_field": field})[:2] == [Skipped("no_text")] * 2


def test_invalid_utf8_rejects_its_row_only(path):
    raw = pa.array([b"good", b"bad \xff", b"fine"])
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    record = pa.table({"info": pa.StructArray.from_arrays([*table["text"].chunks], ["text"])})
    for field, columns in (("text", table), ("info.text", record)):
        found = read(path, columns, {"text_field": field}, row_group_size=1)
        (reject,) = found.rejects
        assert found.texts == ["good", "fine"]
        assert reject.reason == f"row group 1, row 1: invalid UTF-8 in field {field!r}, at its byte 4"


@pytest.mark.parametrize("setting", ["text_field", "id_field", "title_field", "lang_field"])
def test_a_setting_that_names_a_column_of_no_file_is_refused_before_anything_is_read(path, setting):
    read(path)
    with pytest.raises(ConfigError, match=r"'info\.titel'"):
        config(path, **{setting: "info.titel"}).list_files()


def test_a_file_without_the_column_of_texts_is_refused_and_one_without_optional_columns_is_read(path):
    pq.write_table(TABLE, path.with_name("a.parquet"))
    found = read(path, pa.table({"text": TEXTS, "info": [{"title": "T"}] * 50}), FIELDS)
    assert (found[50].doc_id, found[50].title, found[50].lang) == ("s:data.parquet:0", "T", "en")
    with pytest.raises(ConfigError, match=r"'text'.*body"):
        read(path, pa.table({"body": TEXTS}))
    with pytest.raises(ConfigError):
        read(path, pa.table({"m": [[{"text": "a"}]]}), {"text_field": "m.text"})


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\0" * 100, b"PAR1" + b"\xff" * 100 + b"PAR1", None])
def test_what_is_no_whole_parquet_file_is_one_reject_and_one_part(path, data):
    read(path)
    path.write_bytes(path.read_bytes()[:5000] if data is None else data)
    assert "not a readable Parquet file" in reading.read(config(path)).rejected().reason
    (file,) = config(path).list_files()
    assert config(path).split_file(file, 100, 10) == [file]


def test_a_damaged_row_group_costs_only_itself(path):
    read(path, compression="zstd", use_dictionary=False, write_statistics=False)
    data = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(2).column(0)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    found = reading.read(config(path))
    (bad,) = found.rejects
    assert found.texts == TEXTS[:16] + TEXTS[24:]
    assert "row 16" in bad.reason
    assert bad.byte_offset <= middle


# -- Hugging Face data sets -------------------------------------------------------------------------------------

ROWS = [
    {"text": f"Row {number}.", "key": number, "more": {"title": f"Title {number}"}} for number in range(7)
]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def source(path, **settings) -> HfDatasetsConfig:
    fields = {"id_field": "key", "title_field": "more.title"}
    return HfDatasetsConfig(name="s", path=str(path), **fields | settings)


def save(form: str, path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    datasets.disable_progress_bars()
    if form == "saved":
        rows.save_to_disk(path, num_shards=2)
    elif form == "saved-splits":
        datasets.DatasetDict(train=rows, test=rows.select([0])).save_to_disk(path)
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path / "train-00000.parquet", row_group_size=3)
    elif form == "json":
        (path / "train.json").write_text(json.dumps(ROWS))
    else:
        (path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))


@pytest.mark.parametrize("form", ["saved", "saved-splits", "parquet", "jsonl", "json"])
def test_every_layout_on_disk_gives_its_rows_as_datasets_does_in_parts_of_any_size(tmp_path, form):
    save(form, tmp_path)
    found = reading.read(source(tmp_path))
    assert [(each.text, each.title, each.doc_id) for each in found] == [
        (row["text"], row["more"]["title"], f"s:{row['key']}") for row in ROWS
    ]
    assert reading.read(source(tmp_path), part_bytes=1) == found


def test_a_split_is_chosen_by_name_and_a_wrong_name_answered_with_the_right_ones(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(f'text,key\n"{split}, first",1\nsecond,2\n')
    found = reading.read(source(tmp_path, split="test"))
    assert found.texts == ["test, first", "second"], "no title is no loss"
    with pytest.raises(MissingInputError, match="dev") as caught:
        reading.read(source(tmp_path, split="dev"))
    assert "train, test" in caught.value.next_step


def test_files_are_real_files_with_names_below_the_data_set_or_one_file(tmp_path):
    (tmp_path / "data").mkdir()
    save("parquet", tmp_path / "data")
    (file,) = source(tmp_path).list_files()
    assert (file.name, file.path) == ("data/train-00000.parquet", f"{tmp_path}/data/train-00000.parquet")
    uri = "hf://datasets/owner/name@0123abcd/data/train-00000.parquet"
    assert name_below(uri, "owner/name") == "data/train-00000.parquet"
    assert name_below("hf://datasets/squad@0123/plain/train.parquet", "squad") == "plain/train.parquet"
    (tmp_path / "lines.txt").write_text("One.\nTwo.\n")
    lines = source(tmp_path / "lines.txt", id_field=None, title_field=None)
    assert reading.read(lines).texts == ["One.", "Two."]


def test_a_damaged_file_is_one_reject(tmp_path):
    save("saved", tmp_path)
    file = tmp_path / "data-00001-of-00002.arrow"
    file.write_bytes(file.read_bytes()[:40])
    found = reading.read(source(tmp_path))
    assert found.texts == [row["text"] for row in ROWS[:4]]
    assert len(found.rejects) == 1


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_a_missing_column_of_texts_is_an_error_of_the_configuration(tmp_path, form):
    save(form, tmp_path)
    with pytest.raises(ConfigError, match="'body'"):
        reading.read(source(tmp_path, text_field="body"))


def test_what_cannot_be_loaded_is_named(tmp_path, offline):
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    with pytest.raises(ConfigError, match=r"sound\.wav"):
        reading.read(source(tmp_path / "sound.wav"))
    with pytest.raises(MissingInputError):
        reading.read(source(tmp_path / "absent"))
    with pytest.raises(MissingInputError, match="owner/name") as caught:
        source("owner/name").list_files()
    assert "hf download --repo-type dataset owner/name" in caught.value.next_step
