"""Sorted records on disk, ranges of them, and what of them repeats an earlier one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import CorruptArtefactError
from data_prep.dedup import records
from data_prep.dedup.records import (
    RecordWriter,
    document_ranges,
    documents_of,
    hash_range,
    iterate_repeats,
    number_documents,
    read_documents,
    read_range,
    rows_of,
)
from data_prep.layout import RECORD_FILES

COLUMNS = {"key": "uint64", "document": "uint64"}
LAST_KEY = (1 << 64) - 1
KEYS = st.sampled_from([0, 1, 2, 3, 1 << 32, 1 << 63, LAST_KEY - 1, LAST_KEY])


def write(path, runs):
    with RecordWriter(path, COLUMNS) as writer:
        for run in runs:
            keys, documents = zip(*run, strict=True) if run else ((), ())
            columns = {"key": np.array(keys, "uint64"), "document": np.array(documents, "uint64")}
            writer.write(columns)


@given(st.lists(st.lists(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=5), max_size=3), max_size=3))
def test_partitions_hold_every_record_once(tmp_path_factory, files):
    directory = tmp_path_factory.mktemp("records")
    for name, runs in zip(RECORD_FILES.files(len(files)), files, strict=True):
        write(directory / name, runs)
    expected = sorted(record for runs in files for run in runs for record in run)
    for num_partitions in (1, 2, 3, 7):
        found = []
        for partition in range(num_partitions):
            first, last = hash_range(partition, num_partitions)
            for part in read_range(directory, first, last):
                assert all(first <= key <= last for key in part["key"].tolist())
                found += zip(part["key"].tolist(), part["document"].tolist(), strict=True)
        assert sorted(found) == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 12))
def test_document_ranges_hold_all_documents_and_no_more_than_allowed_each(rows, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PARTITION_RECORDS", limit)
        ranges = document_ranges(rows)
    documents = np.concatenate(
        [number_documents(shard, np.arange(count)) for shard, count in enumerate(rows)]
    )
    counts = [int(((documents >= first) & (documents <= last)).sum()) for first, last in ranges]
    assert sum(counts) == sum(rows)
    assert max(counts) <= limit
    assert len(ranges) == max(1, -(-sum(rows) // limit))


def test_documents_of_a_shard_are_found_among_those_of_others(tmp_path):
    for name, shard in zip(RECORD_FILES.files(2), (3, 0), strict=True):
        with RecordWriter(tmp_path / name, {"document": "uint64"}) as writer:
            writer.write({"document": number_documents(shard, np.array([7, 0, 2**32 - 1]))})
            writer.write({"document": number_documents(3, np.array([5]))})
    found = read_documents(tmp_path, 3)
    assert found is not None
    assert rows_of(found["document"]).tolist() == [0, 5, 5, 7, 2**32 - 1]
    assert read_documents(tmp_path, 1) is None
    assert documents_of(1) == (1 << 32, (2 << 32) - 1)


def test_a_damaged_file_is_named(tmp_path):
    write(tmp_path / "00000-of-00001.arrow", [[(1, 2)]])
    path = tmp_path / "00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptArtefactError, match="00000-of-00001"):
        list(read_range(tmp_path, 0, LAST_KEY))


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=8), max_size=6),
    st.integers(1, 8),
)
def test_every_record_but_the_first_of_a_key_is_a_repeat_of_the_first(shards, block):
    first_of, expected, runs = {}, [], []
    for shard, keys in enumerate(shards):
        for row, key in enumerate(keys):
            number = (shard << 32) + row
            if first_of.setdefault(key, number) != number:
                expected.append((number, first_of[key]))
        columns = np.array(keys, dtype=np.uint64).reshape(-1, 2)
        documents = number_documents(shard, np.arange(len(keys)))
        order = np.lexsort([columns[:, 1], columns[:, 0]])
        runs.append({"high": columns[order, 0], "low": columns[order, 1], "document": documents[order]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_RECORDS", block)
        found = [
            pair
            for repeats, firsts in iterate_repeats(runs, ("high", "low"))
            for pair in zip(repeats["document"].tolist(), firsts.tolist(), strict=True)
        ]
    assert sorted(found) == expected
