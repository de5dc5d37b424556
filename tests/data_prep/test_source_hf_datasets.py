"""Hugging Face data sets: local ones in every layout, hub ones up to the network."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources import Skipped
from data_prep.sources.hf_datasets import HfDatasetsConfig, name_below
from tests.data_prep import reading

ROWS = [
    {"text": f"Row {number}.", "key": number, "more": {"title": f"Title {number}"}} for number in range(7)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def source(path, **changes) -> HfDatasetsConfig:
    return HfDatasetsConfig(
        name="hf", path=str(path), **{"id_field": "key", "title_field": "more.title"} | changes
    )


def read(config: HfDatasetsConfig, part_bytes: int = 1 << 30) -> list[Document | Reject | Skipped]:
    return reading.read_split(config, 1000, part_bytes)


def texts(config: HfDatasetsConfig) -> list[str]:
    return [item.text if isinstance(item, Document) else item.reason for item in read(config)]


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
def test_every_layout_on_disk_gives_its_rows_as_datasets_does(tmp_path, form):
    save(form, tmp_path)
    documents = read(source(tmp_path))
    assert [(item.text, item.title, item.doc_id) for item in documents if isinstance(item, Document)] == [
        (row["text"], row["more"]["title"], f"hf:{row['key']}") for row in ROWS
    ]


def test_a_split_is_chosen_by_name_and_a_wrong_name_answered_with_the_right_ones(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(f'text,key\n"{split}, first",1\nsecond,2\n')
    assert texts(source(tmp_path, split="test", title_field=None)) == ["test, first", "second"]
    with pytest.raises(MissingInputError, match="no split 'dev'") as caught:
        texts(source(tmp_path, split="dev"))
    assert "train, test" in caught.value.next_step


def test_files_are_real_files_with_names_below_the_data_set(tmp_path):
    (tmp_path / "data").mkdir()
    save("parquet", tmp_path / "data")
    (file,) = source(tmp_path).list_files()
    assert file.name == "data/train-00000.parquet"
    assert file.path == str(tmp_path / "data" / "train-00000.parquet")


def test_one_file_is_a_data_set(tmp_path):
    (tmp_path / "lines.txt").write_text("One.\nTwo.\n")
    assert texts(source(tmp_path / "lines.txt", id_field=None, title_field=None)) == ["One.", "Two."]


def test_big_files_are_cut_and_give_the_same_rows(tmp_path):
    save("parquet", tmp_path)
    assert read(source(tmp_path), part_bytes=1) == read(source(tmp_path))


def test_a_damaged_file_is_one_reject(tmp_path):
    save("saved", tmp_path)
    file = tmp_path / "data-00001-of-00002.arrow"
    file.write_bytes(file.read_bytes()[:40])
    *good, bad = read(source(tmp_path))
    assert [item.text for item in good if isinstance(item, Document)] == [row["text"] for row in ROWS[:4]]
    assert isinstance(bad, Reject)
    assert bad.uri == file.name


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_a_missing_column_of_texts_is_an_error_of_the_configuration(tmp_path, form):
    save(form, tmp_path)
    with pytest.raises(ConfigError, match="no column 'body'; there are"):
        read(source(tmp_path, text_field="body"))


def test_a_missing_optional_column_is_no_loss(tmp_path):
    (tmp_path / "train.csv").write_text("text\nfirst\n")
    assert texts(source(tmp_path)) == ["first"]


def test_a_format_that_is_not_read_is_a_config_error(tmp_path):
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    with pytest.raises(ConfigError, match=r"sound\.wav"):
        read(source(tmp_path / "sound.wav"))


def test_an_unreachable_hub_is_a_missing_input_that_tells_the_way_out():
    with pytest.raises(MissingInputError, match="hub does not answer for the data set owner/name") as caught:
        source("owner/name").list_files()
    assert "hf download --repo-type dataset owner/name" in caught.value.next_step


def test_a_missing_directory_is_a_missing_input(tmp_path):
    with pytest.raises(MissingInputError, match="cannot be loaded"):
        read(source(tmp_path / "absent"))


def test_a_file_of_the_hub_is_named_without_its_commit():
    uri = "hf://datasets/owner/name@0123abcd/data/train-00000.parquet"
    assert name_below(uri, "owner/name") == "data/train-00000.parquet"
    assert name_below("hf://datasets/squad@0123/plain/train.parquet", "squad") == "plain/train.parquet"
