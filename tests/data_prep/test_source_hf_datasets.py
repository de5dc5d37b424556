"""Hugging Face data sets: local ones in every layout, hub ones up to the network."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.sources.hf_datasets import HfDatasetsConfig, name_below
from tests.data_prep import reading

ROWS = [
    {"text": f"Row {number}.", "key": number, "more": {"title": f"Title {number}"}} for number in range(7)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def source(path, **settings) -> HfDatasetsConfig:
    return HfDatasetsConfig(
        name="s", path=str(path), **{"id_field": "key", "title_field": "more.title"} | settings
    )


def read(path, part_bytes=None, **settings) -> reading.Results:
    return reading.read(source(path, **settings), part_bytes=part_bytes)


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
    found = read(tmp_path)
    assert [(each.text, each.title, each.doc_id) for each in found] == [
        (row["text"], row["more"]["title"], f"s:{row['key']}") for row in ROWS
    ]
    assert read(tmp_path, part_bytes=1) == found


def test_a_split_is_chosen_by_name_and_a_wrong_name_answered_with_the_right_ones(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(f'text,key\n"{split}, first",1\nsecond,2\n')
    assert read(tmp_path, split="test").texts == ["test, first", "second"], "no title is no loss"
    with pytest.raises(MissingInputError, match="dev") as caught:
        read(tmp_path, split="dev")
    assert "train, test" in caught.value.next_step


def test_files_are_real_files_with_names_below_the_data_set(tmp_path):
    (tmp_path / "data").mkdir()
    save("parquet", tmp_path / "data")
    (file,) = source(tmp_path).list_files()
    assert (file.name, file.path) == ("data/train-00000.parquet", f"{tmp_path}/data/train-00000.parquet")
    uri = "hf://datasets/owner/name@0123abcd/data/train-00000.parquet"
    assert name_below(uri, "owner/name") == "data/train-00000.parquet"
    assert name_below("hf://datasets/squad@0123/plain/train.parquet", "squad") == "plain/train.parquet"


def test_one_file_is_a_data_set(tmp_path):
    (tmp_path / "lines.txt").write_text("One.\nTwo.\n")
    assert read(tmp_path / "lines.txt", id_field=None, title_field=None).texts == ["One.", "Two."]


def test_a_damaged_file_is_one_reject(tmp_path):
    save("saved", tmp_path)
    file = tmp_path / "data-00001-of-00002.arrow"
    file.write_bytes(file.read_bytes()[:40])
    found = read(tmp_path)
    assert found.texts == [row["text"] for row in ROWS[:4]]
    assert len(found.rejects) == 1


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_a_missing_column_of_texts_is_an_error_of_the_configuration(tmp_path, form):
    save(form, tmp_path)
    with pytest.raises(ConfigError, match="'body'"):
        read(tmp_path, text_field="body")


def test_what_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    with pytest.raises(ConfigError, match=r"sound\.wav"):
        read(tmp_path / "sound.wav")
    with pytest.raises(MissingInputError):
        read(tmp_path / "absent")
    with pytest.raises(MissingInputError, match="owner/name") as caught:
        source("owner/name").list_files()
    assert "hf download --repo-type dataset owner/name" in caught.value.next_step
